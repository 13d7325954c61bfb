"""The processes of one supervisor survive the death of any of them."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.nats_admin import Admin
from tests.support.controllers.sync_log import AGAIN, RECORDS, TURNS, Book
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

WORDS = ("run", "-c", "tests.support.controllers.sync_log:Turns", "--processes", "2")
KEYS = [f"k{number}" for number in range(40)]
WITHIN_S = 120.0


@pytest.mark.parametrize(
    "lease_ttl_s", [3, pytest.param(3600, id="long before its record expires")]
)
async def test_every_key_is_synced_after_a_process_was_killed(
    nats_server: NatsServer, tmp_path: Path, lease_ttl_s: int
) -> None:
    book = Book(tmp_path / "records")
    environ = {RECORDS: str(book.path), AGAIN: "3600"}
    natsctl = Natsctl(tmp_path, nats_server.url, environ=environ)
    async with (
        natsctl.running(*WORDS, "--lease-ttl", str(lease_ttl_s)) as daemon,
        Admin(nats_server.url) as admin,
    ):
        await daemon.logged("members=2", times=2)
        for key in KEYS[:20]:
            await admin.put(TURNS, key, {"spec": {}})
        await eventually(lambda: _synced(book) >= set(KEYS[:20]), within_s=WITHIN_S)
        victim = re.search(r"process started  process=1 pid=(\d+)", daemon.log)
        assert victim is not None
        killed = int(victim[1])
        os.kill(killed, signal.SIGKILL)
        since = len(book.records())
        for key in KEYS:
            await admin.put(TURNS, key, {"spec": {"after": 1}})
        await eventually(lambda: _synced(book, since) >= set(KEYS), within_s=WITHIN_S)
        await daemon.logged("process ended  process=1 status=SIGKILL")
        assert await daemon.ends(signal.SIGTERM) == 0
    book.check(excused=frozenset({killed}))


def _synced(book: Book, since: int = 0) -> set[str]:
    return {record.key for record in book.records()[since:] if record.what == "end"}
