"""Processes that run one controller with leader election or sharding."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.cli.forked_process import ForkedProcess, forked
from tests.support.clients.nats_admin import Admin
from tests.support.controllers.sync_log import AGAIN, RECORDS, TURNS, Book
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy

KEYS = ("a", "b", "c", "d")
POLL_S = 0.03
LEADING = "leading  controller="


class Member:
    """One `natsctl run` process with its own proxy to the server."""

    def __init__(self, name: str, group: "ProcessGroup", proxy: CutProxy) -> None:
        self.name = name
        self.proxy = proxy
        self._group = group
        self._process: ForkedProcess | None = None
        self._log = group.folder / f"{name}.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    async def start(self) -> None:
        """Start the process, and wait until it is a standby, the leader or a shard member."""
        before = len(self.log)
        options = (*self._group.options, "--lease-ttl", f"{self._group.ttl_s:g}")
        with self._log.open("ab") as log:
            self._process = await forked(
                *("run", "-c", "tests.support.controllers.sync_log:Turns"),
                *(*options, "--server", self.proxy.url),
                environ={RECORDS: str(self._group.book.path), AGAIN: self._group.again_s},
                log=log,
            )

        def ready() -> bool:
            assert self._process is not None
            new_lines = self.log[before:]
            assert self._process.returncode is None, new_lines
            return any(text in new_lines for text in ("standing by", LEADING, "sharing keys"))

        await eventually(ready, every_s=POLL_S)

    async def end(self, signal_number: signal.Signals) -> int:
        """Send the signal if the process runs, and return its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal_number)
        return await self._process.wait()

    @asynccontextmanager
    async def away(self, fault: str) -> AsyncIterator[None]:
        """Suspend the process, cut its connection or let it pass no data, during the context."""
        match fault:
            case "paused":
                os.kill(self.pid, signal.SIGSTOP)
            case "cut":
                self.proxy.cut()
            case _:
                self.proxy.freeze()
        yield
        os.kill(self.pid, signal.SIGCONT)
        self.proxy.thaw()
        await self.proxy.heal()

    @property
    def terms(self) -> int:
        """The number of terms in which this member began to lead."""
        return self.log.count(LEADING)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def begun(self, since: int = 0) -> int:
        """Return the number of syncs that this process began after *since* records."""
        return len(self.synced_keys(since))

    def synced_keys(self, since: int = 0) -> list[str]:
        """Return the keys of the syncs that this process began after *since* records."""
        records = self._group.book.records()[since:]
        return [
            record.key for record in records if record.pid == self.pid and record.what == "begin"
        ]


class ProcessGroup:
    """All processes, and the log of their syncs."""

    def __init__(self, folder: Path, ttl_s: float, options: Sequence[str], again_s: float) -> None:
        self.folder = folder
        self.options = options
        self.again_s = str(again_s)
        self.ttl_s = ttl_s
        self.book = Book(folder / "records")
        self.members: list[Member] = []
        self.join: Callable[[], Awaitable[Member]]
        """Start one more process, and return it."""

    @property
    def recorded(self) -> int:
        """The number of records in the sync log."""
        return len(self.book.records())

    async def leader(self, *, other_than: Member | None = None) -> Member:
        """Wait until a member begins a sync, and return it."""
        since = self.recorded

        def working_member() -> Member | None:
            candidates = (member for member in self.members if member is not other_than)
            return next((member for member in candidates if member.begun(since)), None)

        member = await eventually(working_member, every_s=POLL_S)
        assert member is not None
        return member

    async def progress(self, *members: Member, syncs: int = 20) -> None:
        """Wait until the members together have begun this many more syncs."""
        since = self.recorded
        await eventually(
            lambda: sum(member.begun(since) for member in members) >= syncs, every_s=POLL_S
        )

    def check(self) -> None:
        """Raise `Overlap` if two processes synced one key at the same time."""
        self.book.check()


@asynccontextmanager
async def processes(
    size: int,
    server: NatsServer,
    folder: Path,
    *,
    ttl_s: float,
    options: Sequence[str] = ("--leader-elect",),
    keys: Sequence[str] = KEYS,
    again_s: float = 0.1,
) -> AsyncIterator[ProcessGroup]:
    """Start this many processes, one after another, and check the sync log at the end.

    The first process leads, unless it was stopped for longer than half of *ttl_s*. Every key is
    synced again after *again_s* seconds.
    """
    group = ProcessGroup(folder, ttl_s, options, again_s)
    async with AsyncExitStack() as stack:

        async def join() -> Member:
            proxy = await stack.enter_async_context(CutProxy(server.url))
            member = Member(f"m{len(group.members)}", group, proxy)
            group.members.append(member)
            stack.push_async_callback(member.end, signal.SIGKILL)
            await member.start()
            return member

        group.join = join
        for _ in range(size):
            await join()
        async with Admin(server.url) as admin:
            for key in keys:
                await admin.put(TURNS, key, {"spec": {}})
        await eventually(lambda: sum(member.begun() for member in group.members) >= len(KEYS))
        yield group
        group.check()
