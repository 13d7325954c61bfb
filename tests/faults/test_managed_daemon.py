"""A daemon with a reconciler survives SIGKILL before and after each of its calls."""

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from tests.support.cli.forked_process import ForkedProcess, forked
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer


class Daemon:
    """`natsctl run`, killed at one crash point for each key in turn."""

    def __init__(self, url: str, folder: Path) -> None:
        self.deaths = 0
        self._url = url
        self._folder = folder
        self._process: ForkedProcess | None = None
        self._log = (folder / "log").open("ab")

    async def start(self) -> None:
        """Start the daemon with the next key and its next crash point."""
        (self._folder / "kill").write_text(f"disk-{self.deaths} {self.deaths}")
        self._process = await forked(
            *("run", "--controller", "tests.support.controllers.disk_reconciler:Disks"),
            *("--server", self._url),
            environ={"DISKS_FOLDER": str(self._folder)},
            log=self._log,
        )

    async def revive(self) -> None:
        """Start the daemon again if it was killed."""
        assert self._process is not None
        if self._process.returncode is not None:
            log = (self._folder / "log").read_text()
            assert self._process.returncode == -signal.SIGKILL, log[-3000:]
            self.deaths += 1
            await self.start()

    async def end(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        self._log.close()


class Disks:
    """The bucket, the disk files, and the daemon that syncs them."""

    def __init__(self, bucket: KeyValue, folder: Path, daemon: Daemon) -> None:
        self._bucket = bucket
        self._folder = folder
        self._daemon = daemon

    async def put(self, key: str, size: int) -> None:
        await self._edit(key, lambda document: document.update(spec={"size": size}))

    async def delete(self, key: str) -> None:
        """Mark the object deleted, as `natsctl delete` does."""
        mark = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        await self._edit(key, lambda document: document["metadata"].update(mark))

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

    async def becomes(self, key: str, size: int | None) -> None:
        """Wait until the disk has this size, or None for no disk, and its object is ready.

        A killed daemon is started again.
        """

        async def has_size() -> bool:
            await self._daemon.revive()
            file = self._folder / "disks" / key
            document = await self._document(key)
            if size is None:
                return document is None and not file.exists()
            ready = document is not None and "True" in [
                condition["status"]
                for condition in document.get("status", {}).get("conditions", ())
                if condition["type"] == "Ready"
            ]
            return ready and file.exists() and file.read_text() == str(size)

        await eventually(has_size, every_s=0.05)

    async def _document(self, key: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads((await self._bucket.get(key)).value or b"null") or {}) or None
        except KeyNotFoundError:
            return None


@pytest.mark.timeout(900)
async def test_a_daemon_killed_at_each_call_creates_each_disk_once_and_deletes_it(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "disks").mkdir()
    (tmp_path / "created").touch()
    client = await nats.connect(nats_server.url)
    bucket = await client.jetstream().create_key_value(bucket="disks", history=5)
    daemon = Daemon(nats_server.url, tmp_path)
    disks = Disks(bucket, tmp_path, daemon)
    await daemon.start()
    lives = 0
    while daemon.deaths == lives:  # one crash for each life, until no crash point is left
        key = f"disk-{lives}"
        await disks.put(key, 1)
        await disks.becomes(key, 1)
        await disks.put(key, 2)
        await disks.becomes(key, 2)
        await disks.delete(key)
        await disks.becomes(key, None)
        lives += 1
        await disks.put("probe", lives)  # makes a crash at the very end visible
        await disks.becomes("probe", lives)
    await daemon.end()
    await client.close()
    created = (tmp_path / "created").read_text().split()
    assert daemon.deaths > 20
    assert sorted(created) == sorted(["probe", *(f"disk-{number}" for number in range(lives))])
