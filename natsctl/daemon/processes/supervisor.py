"""Starts processes that share the keys of controllers, restarts those that die, and stops all.

The processes are members of one group, see `core/coordination/`. While a process is down, the
other members work on its keys. They get the keys at once, because they learn that it has ended.
"""

import asyncio
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import msgspec

from natsctl.core.coordination.participant import new_identity
from natsctl.core.queue.retry import backoff
from natsctl.core.task_group import together
from natsctl.daemon.observe.log_relay import LogRelay
from natsctl.daemon.processes.child import Child, ChildExit, Command, started
from natsctl.daemon.processes.child_options import (
    ChildFailed,
    Loaded,
    OnReport,
    PeerEnded,
    Report,
    Running,
)
from natsctl.daemon.stop_limit import FAILED, MORE_S
from natsctl.errors import NatsctlError
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
HEALTHY_S = 60.0  # the backoff starts over after a process that ran this long
KILL_S = 5.0  # how much longer than its own limit a process may take to stop
ENDED_MAX = 64  # processes that have ended, of which a new process learns
STOPPED = (0, -signal.SIGTERM)  # the exit statuses of a process that was stopped
USAGE = 2  # the exit status for an error that a restart cannot help

Start = Callable[[int, str, tuple[str, ...], OnReport], AbstractAsyncContextManager[Child]]
"""Starts the process with this number, name and peers, and passes its reports on: `started`."""


class ProcessError(NatsctlError):
    """A process ended with this exit status, and a restart does not help.

    `texts` are the error as the process would have written it.
    """

    def __init__(self, status: int, texts: Sequence[str]) -> None:
        super().__init__("\n".join(texts))
        self.status = status
        self.texts = tuple(texts)


class ProcessState(msgspec.Struct, frozen=True):
    """The state of one process.

    Attributes:
        number: its number, from 1.
        restarts: how often it was restarted.
        socket: the path on which it serves probes and metrics; None if it does not run.
        failure: why it does not work; empty if it does.
    """

    number: int
    restarts: int
    socket: Path | None
    failure: str = ""


class Supervisor:
    """Runs several processes until cancelled.

    *Guarantees.* The first process is loaded before the others start, so that an error in a
    controller is reported once. A process that dies is restarted with backoff. The end of the
    supervisor ends every process, even if the supervisor is killed.

    Args:
        count: the number of processes.
        relay: writes the lines of the processes.
        stop_timeout_s: the time that running syncs have to finish.
        serves: whether the processes serve probes and metrics, which takes 10 MB in each.
    """

    def __init__(
        self, count: int, relay: LogRelay, *, stop_timeout_s: float, serves: bool = True
    ) -> None:
        self._relay = relay
        self._serves = serves
        self._stop_s = stop_timeout_s + MORE_S + KILL_S
        self._slots = [_Slot(number) for number in range(1, count + 1)]
        self._ended = deque[PeerEnded](maxlen=ENDED_MAX)  # their records may not be withdrawn yet
        self._failing = False  # whether an error of one process ends all

    def states(self) -> list[ProcessState]:
        """Return the state of each process."""
        return [slot.state() for slot in self._slots]

    async def run(self, command: Command, *, private: bool = False) -> None:
        """Run processes with this command line until cancelled, then stop all in order.

        *private* is whether they use a private nats-server.

        Raises `ProcessError` if a process ends with an error before it works, if it ends with a
        usage error, and if it fails to stop.
        """
        log.info("starting processes", processes=len(self._slots))
        with tempfile.TemporaryDirectory(prefix="natsctl-") as folder:
            start = partial(
                started,
                folder=Path(folder),
                command=command,
                relay=self._relay,
                private=private,
                serves=self._serves,
            )
            async with together() as group:
                first = self._slots[0]
                for slot in self._slots:
                    keep = self._keep_running(slot, start)
                    group.create_task(keep, name=f"process {slot.number}")
                    await first.loaded.wait()

    async def _keep_running(self, slot: "_Slot", start: Start) -> None:
        """Run one process, and restart it when it dies."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            begun = clock()
            end = await self._run(slot, start)
            if ends_all(end, worked=slot.worked):
                self._raise(end)
                return
            failures = 1 if clock() - begun > HEALTHY_S else failures + 1
            wait_s = backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S)
            slot.note_end(end, wait_s)
            self._announce_end(slot)
            await asyncio.sleep(wait_s)
            slot.restarts += 1

    def _announce_end(self, slot: "_Slot") -> None:
        """Send the name of the slot's process to all others, and give its successor another one."""
        ended, slot.identity = PeerEnded(slot.identity), new_identity()
        self._ended.append(ended)
        for other_slot in self._slots:
            if other_slot.child is not None:
                other_slot.child.send(ended)

    async def _run(self, slot: "_Slot", start: Start) -> ChildExit:
        """Run one process until it ends."""
        peers = tuple(other_slot.identity for other_slot in self._slots)
        async with start(slot.number, slot.identity, peers, slot.receive) as child:
            slot.child, slot.is_loaded = child, False
            log.info("process started", process=slot.number, pid=child.pid)
            for ended in self._ended:
                child.send(ended)
            try:
                return await child.ended()
            except asyncio.CancelledError:
                end = await child.stop(limit_s=self._stop_s)
                if end.status not in STOPPED:
                    self._raise(end)
                raise
            finally:
                slot.child = None

    def _raise(self, end: ChildExit) -> None:
        """Raise the error of the first process that ends all; the others have the same one."""
        if not self._failing:
            self._failing = True
            status = end.status if end.status > 0 else FAILED
            raise ProcessError(status, () if end.failed is None else end.failed.texts)


class _Slot:
    """The place of one process, which one child after another takes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.identity = new_identity()  # of the present child, as a member
        self.restarts = 0
        self.child: Child | None = None
        self.loaded = asyncio.Event()  # a child has loaded its controllers
        self.is_loaded = False  # whether the present child has
        self.worked = False  # whether a child has begun to work
        self._failure = "the process is starting"

    def state(self) -> ProcessState:
        child = self.child
        if child is None or not self.is_loaded:
            return ProcessState(self.number, self.restarts, None, self._failure)
        return ProcessState(self.number, self.restarts, child.socket)

    def receive(self, report: Report) -> None:
        match report:
            case Loaded():
                self.is_loaded = True
                self.loaded.set()
            case Running():
                self.worked = True
            case ChildFailed():
                pass  # the end of the process has it

    def note_end(self, end: ChildExit, wait_s: float) -> None:
        """Log the end of a process that is restarted."""
        self._failure = f"the process ended with {_described(end.status)} and restarts"
        log.error(
            "process ended",
            process=self.number,
            status=_described(end.status),
            restart_in_s=round(wait_s, 1),
            error="; ".join(end.failed.texts) if end.failed else None,
        )


def ends_all(end: ChildExit, *, worked: bool) -> bool:
    """Return whether the end of one process ends all, because a restart would end the same way.

    *worked* is whether a process in its place has begun to work before.
    """
    return end.status == USAGE or (end.status > 0 and not worked)


def _described(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
