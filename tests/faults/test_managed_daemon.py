"""A daemon with a reconciler survives SIGKILL before and after each of its calls."""

import json
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from tests.support.cli.forked_process import ForkedProcess, forked
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer


class Disks:
    """The bucket, the disk files, and the daemon that syncs them."""

    def __init__(self, bucket: KeyValue, url: str, folder: Path) -> None:
        self.deaths = 0
        self._bucket = bucket
        self._url = url
        self._folder = folder
        self._process: ForkedProcess | None = None

    async def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = await forked(
                *("run", "--controller", "tests.support.controllers.disk_reconciler:Disks"),
                *("--server", self._url),
                environ={"DISKS_FOLDER": str(self._folder)},
                log=log,
            )

    async def end(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def life(self, key: str, death: str = "") -> list[str]:
        """Create, change and delete a disk; return the points at which the daemon may die.

        If *death* is one of them, it dies there once.
        """
        deaths = self.deaths
        (self._folder / "kill").write_text(f"{key} {death}\n")
        await self._edit(key, lambda document: document.update(spec={"size": 1}))
        await self._becomes(key, 1)
        await self._edit(key, lambda document: document.update(spec={"size": 2}))
        await self._becomes(key, 2)
        mark = {"deletionTimestamp": "2026-01-01T00:00:00Z"}  # as `natsctl delete` does
        await self._edit(key, lambda document: document["metadata"].update(mark))
        await self._becomes(key, None)

        async def has_died() -> bool:  # the point may be the last
            await self._revive()
            return self.deaths > deaths

        if death:
            await eventually(has_died)
        points = (self._folder / "points").read_text().splitlines()
        return [point.removeprefix(f"{key} ") for point in points if point.startswith(f"{key} ")]

    async def _edit(self, key: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the stored object, and retry if another client wrote it first."""
        while True:
            try:
                entry = await self._bucket.get(key)
                document, revision = json.loads(entry.value or b"{}"), entry.revision
            except KeyNotFoundError:
                document, revision = {}, None
            change(document)
            with suppress(KeyWrongLastSequenceError):
                await self._bucket.update(key, json.dumps(document).encode(), revision)
                return

    async def _becomes(self, key: str, size: int | None) -> None:
        """Wait until the disk has this size, or None for no disk, and its object is ready.

        A killed daemon is started again.
        """

        async def has_size() -> bool:
            await self._revive()
            file = self._folder / "disks" / key
            try:
                document = json.loads((await self._bucket.get(key)).value or b"null")
            except KeyNotFoundError:
                document = None
            if size is None or document is None:
                return size is document is None and not file.exists()
            conditions = document.get("status", {}).get("conditions", ())
            ready = ("Ready", "True") in [(each["type"], each["status"]) for each in conditions]
            return ready and file.exists() and file.read_text() == str(size)

        await eventually(has_size, every_s=0.02)

    async def _revive(self) -> None:
        """Start the daemon again if it was killed."""
        assert self._process is not None
        if self._process.returncode is not None:
            log = (self._folder / "log").read_text()
            assert self._process.returncode == -signal.SIGKILL, log[-3000:]
            self.deaths += 1
            await self.start()


@asynccontextmanager
async def disks_of(url: str, folder: Path) -> AsyncIterator[Disks]:
    (folder / "disks").mkdir()
    client = await nats.connect(url)
    bucket = await client.jetstream().create_key_value(bucket="disks", history=5)
    disks = Disks(bucket, url, folder)
    await disks.start()
    try:
        yield disks
    finally:
        await disks.end()
        await client.close()


KINDS = re.compile(r"after .* 1")  # nothing has changed before a call since the one before it


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(KINDS, id="kinds"),
        pytest.param(re.compile(".*"), id="all", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(900)
async def test_a_daemon_killed_at_each_call_creates_each_disk_once_and_deletes_it(
    nats_server: NatsServer, tmp_path: Path, points: re.Pattern[str]
) -> None:
    """The first call of each kind kills the daemon; in long runs, each call does, in two ways."""
    async with disks_of(nats_server.url, tmp_path) as disks:
        deaths = [point for point in await disks.life("disk") if points.fullmatch(point)]
        keys = [f"disk-{number}" for number in range(len(deaths))]
        for key, death in zip(keys, deaths, strict=True):
            await disks.life(key, death)
        assert disks.deaths == len(deaths)
    assert len(deaths) > 10
    assert sorted((tmp_path / "created").read_text().split()) == sorted(["disk", *keys])
