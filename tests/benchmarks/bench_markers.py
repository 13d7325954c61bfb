"""The memory growth of a process while keys are created and deleted."""

import asyncio
import sys

from nats.aio.client import Client

from tests.benchmarks.support.dataset import BUCKET, key, value
from tests.benchmarks.support.measured_server import ROOT, Sizes, filled
from tests.benchmarks.support.results import Row, limited
from tests.support.servers.nats_server import NatsServer

MB = 1_000_000
BATCH = 1_000
LIMIT_MB = 25.0
RESPONSE_S = 60.0
DELETED = {"KV-Operation": "DEL"}


async def run(sizes: Sizes) -> list[Row]:
    count = sizes.deleted
    async with filled(0) as server:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.benchmarks.support.marker_process",
                server.url,
                str(BATCH),
            ),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            before = await _bytes(process)
            after = await _create_and_delete(server, count, process)
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


async def _create_and_delete(
    server: NatsServer, count: int, process: asyncio.subprocess.Process
) -> int:
    """Create and delete keys in batches, and return the final resident bytes of the process."""
    client, resident = Client(), 0
    await client.connect(server.url)
    try:
        for first in range(0, count, BATCH):
            for deleted in (False, True):
                await _write(client, range(first, first + BATCH), deleted=deleted)
            resident = await _bytes(process)
    finally:
        await client.close()
    return resident


async def _write(client: Client, numbers: range, *, deleted: bool) -> None:
    headers = DELETED if deleted else None
    for number in numbers:
        subject, payload = f"$KV.{BUCKET}.{key(number)}", b"" if deleted else value(number)
        if number == numbers[-1]:
            await client.request(subject, payload, timeout=RESPONSE_S, headers=headers)
        else:
            await client.publish(subject, payload, headers=headers)


async def _bytes(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the process ended"
    return int(line)
