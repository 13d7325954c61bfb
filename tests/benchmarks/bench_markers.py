"""What a process keeps of keys that were made and deleted."""

import asyncio
import sys

from nats.aio.client import Client

from tests.benchmarks.data import BUCKET, key, value
from tests.benchmarks.rows import Row, limited
from tests.benchmarks.stage import ROOT, Sizes, filled
from tests.servers import NatsServer

MB = 1_000_000
BATCH = 1_000
LIMIT_MB = 25.0
ANSWER_S = 60.0
DELETED = {"KV-Operation": "DEL"}


async def run(sizes: Sizes) -> list[Row]:
    count = sizes.deleted
    async with filled(0) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.benchmarks.forgetting", server.url, str(count)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            before = await _bytes(process)
            await _make_and_delete(server, count)
            after = await _bytes(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
    return [
        limited(
            f"memory after {count:,} keys were made and deleted: growth",
            "MB",
            [(after - before) / MB],
            target=f"<= {LIMIT_MB:g} MB",
            enough=lambda grown: grown <= LIMIT_MB,
        )
    ]


async def _make_and_delete(server: NatsServer, count: int) -> None:
    """Make keys and delete them, a batch at a time, so that few are alive at once."""
    client = Client()
    await client.connect(server.url)
    try:
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            for payload, headers in ((None, None), (b"", DELETED)):
                for number in numbers:
                    given = value(number) if payload is None else payload
                    subject = f"$KV.{BUCKET}.{key(number)}"
                    if number == numbers[-1]:
                        await client.request(subject, given, timeout=ANSWER_S, headers=headers)
                    else:
                        await client.publish(subject, given, headers=headers)
    finally:
        await client.close()


async def _bytes(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the process ended"
    return int(line)
