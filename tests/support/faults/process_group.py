"""Processes that run one controller, and elect who leads or share its keys."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.cli.forked_process import ForkedProcess, forked
from tests.support.clients.nats_admin import Admin
from tests.support.controllers.sync_log import AGAIN, PAUSE_S, RECORDS, TURNS, Book
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy

KEYS = ("a", "b", "c", "d")


class Member:
    """`natsctl run` in a process of its own, with a way to the server of its own."""

    def __init__(self, name: str, crew: "Crew", way: CutProxy) -> None:
        self.name = name
        self.way = way
        self._crew = crew
        self._process: ForkedProcess | None = None
        self._log = crew.folder / f"{name}.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    async def start(self) -> None:
        """Start it, and wait until it stands by, leads, or shares keys."""
        before = len(self.log)
        options = (*self._crew.how, "--lease-ttl", f"{self._crew.ttl_s:g}")
        with self._log.open("ab") as log:
            self._process = await forked(
                *("run", "-c", "tests.support.controllers.sync_log:Turns"),
                *(*options, "--server", self.way.url),
                environ={RECORDS: str(self._crew.book.path), AGAIN: self._crew.again_s},
                log=log,
            )

        def ready() -> bool:
            assert self._process is not None
            said = self.log[before:]
            assert self._process.returncode is None, said
            return any(
                text in said for text in ("standing by", "leading  controller=", "sharing keys")
            )

        await eventually(ready)

    async def end(self, how: signal.Signals) -> int:
        """Send it the signal, where it runs, and return its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
            if how == signal.SIGKILL:
                self._crew.excused |= {self.pid}
        return await self._process.wait()

    def pause(self) -> None:
        """Stop it where it is."""
        self._crew.excused |= {self.pid}
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def begun(self, since: int = 0) -> int:
        """Count the syncs that it has begun, after so many records."""
        return len(self.visits(since))

    def visits(self, since: int = 0) -> list[str]:
        """Return the keys of the syncs that it has begun, after so many records."""
        records = self._crew.book.records()[since:]
        return [at.key for at in records if at.pid == self.pid and at.what == "begin"]


class Crew:
    """All of them, and what they did."""

    def __init__(self, folder: Path, ttl_s: float, how: Sequence[str], again_s: float) -> None:
        self.folder = folder
        self.how = how
        self.again_s = str(again_s)
        self.ttl_s = ttl_s
        self.book = Book(folder / "records")
        self.members: list[Member] = []
        self.excused: frozenset[int] = frozenset()
        self.join: Callable[[], Awaitable[Member]]
        """Start one more, and return it."""

    @property
    def recorded(self) -> int:
        """How many records there are."""
        return len(self.book.records())

    async def leader(self, *, other_than: Member | None = None) -> Member:
        """Wait until a member works from now on, and return it."""
        since = self.recorded

        def found() -> Member | None:
            at_work = (each for each in self.members if each is not other_than)
            return next((each for each in at_work if each.begun(since)), None)

        member = await eventually(found)
        assert member is not None
        return member

    async def progress(self, member: Member, *, syncs: int = 20) -> None:
        """Wait until the member has begun so many syncs more."""
        since = self.recorded
        await eventually(lambda: member.begun(since) >= syncs)

    def check(self) -> None:
        """Raise `Overlap` where two were at one key at the same time."""
        self.book.check(excused=self.excused)


@asynccontextmanager
async def crew_of(
    size: int,
    server: NatsServer,
    folder: Path,
    *,
    ttl_s: float,
    how: Sequence[str] = ("--leader-elect",),
    keys: Sequence[str] = KEYS,
    again_s: float = PAUSE_S,
) -> AsyncIterator[Crew]:
    """Run so many processes, one after another: the first of them leads. Checks them at the end.

    Keys are visited again after *again_s*.
    """
    crew = Crew(folder, ttl_s, how, again_s)
    async with AsyncExitStack() as stack:

        async def join() -> Member:
            way = await stack.enter_async_context(CutProxy(server.url))
            member = Member(f"m{len(crew.members)}", crew, way)
            crew.members.append(member)
            stack.push_async_callback(member.end, signal.SIGKILL)
            await member.start()
            return member

        crew.join = join
        for _ in range(size):
            await join()
        async with Admin(server.url) as admin:
            for key in keys:
                await admin.put(TURNS, key, {"spec": {}})
        await eventually(lambda: crew.members[0].begun() >= len(KEYS))
        yield crew
        crew.check()
