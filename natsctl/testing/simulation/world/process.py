"""Runs a program in processes that crash and start again, and that may divide its work.

A crash stops every task of the process at its current `await`. From then on the connection of the
process is dead, so the end of the tasks has no effect outside. The next life of the process begins
with a new instance of the program.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from enum import Enum
from functools import partial
from typing import Any, Protocol

from natsctl.core.coordination.shares import Participation
from natsctl.core.coordination.term import SHARES, TermGuard
from natsctl.core.environment import enter
from natsctl.core.installation import is_first_run
from natsctl.core.workqueue import WorkQueue, made_queues
from natsctl.telemetry.hiding import error_text
from natsctl.testing.memory import MemoryStores
from natsctl.testing.simulation.world.network import Network
from natsctl.testing.simulation.world.stores import (
    SimulatedCluster,
    SimulatedStores,
)

KILL_ROUNDS = 50  # in which tasks of a crashed process may end
RESTART_S = 1.0  # after a start that failed
PROCESSES = 3  # of a group that divides its work
TTL_S = 10.0  # of their sessions
MOVED_S = 3.0  # after shares have moved, in which the syncs of their keys begin


class Division(Enum):
    """How the work is divided: one process has all of it, or three processes elect or share."""

    ALONE = "one process"
    ELECTED = "three processes that elect a leader"
    SHARED = "three processes that share the keys"


class Program(Protocol):
    """A program that a process runs, such as a `ControllerRuntime`."""

    async def run(self) -> None:
        """Work until `stop`; raises the error that ends the program."""
        ...

    def stop(self) -> None:
        """Begin no further work."""
        ...

    @property
    def idle(self) -> bool:
        """True if no work is left, apart from work at a requested time."""
        ...

    @property
    def synced(self) -> asyncio.Event:
        """Set once the program has begun to work."""
        ...


MakeProgram = Callable[[SimulatedStores, SimulatedCluster], Program]
"""Makes a new instance of a program over the stores that its process sees."""

current_life: contextvars.ContextVar["ProcessLife | None"] = contextvars.ContextVar(
    "current_life", default=None
)
"""The life of the process to which the current task belongs."""


def life_of_task() -> "ProcessLife":
    """Return the life of the process to which the current task belongs."""
    life = current_life.get()
    if life is None:
        raise LookupError("this task belongs to no process of a simulation")
    return life


class ProcessLife:
    """One life of a process, from its start to a crash or its end."""

    def __init__(self, name: str, network: Network) -> None:
        self.crashed = False
        self.name = name
        self.network = network
        self.program: Program | None = None
        self.restart_s = 0.0
        self.over = asyncio.Event()
        self.part: Participation | None = None  # of a process that divides the work with others
        self.moved_at = 0.0  # when it got other shares
        self.queues: list[WorkQueue[Any]] = []  # all that the program has made
        self._tasks: list[asyncio.Task[Any]] = []

    def crash(self, restart_s: float) -> None:
        self.crashed = True
        self.restart_s = restart_s
        self.over.set()

    def joined(self, task: asyncio.Task[Any]) -> None:
        """Note a task of this life."""
        self._tasks.append(task)

    @property
    def works_on(self) -> int:
        """The shares on which this process may work now, with those whose syncs haven't ended."""
        leadership = None if self.part is None or self.crashed else self.part.leadership
        return leadership.mask | leadership.busy if leadership and leadership.leads else 0

    async def run(self, group: "SimulatedGroup") -> None:
        """Run a new program; raises the error that ends it."""
        made_queues.set(self.queues)
        stores = SimulatedStores(group.stores, self)
        cluster = SimulatedCluster(group.stores.kube, self)
        if group.mode is Division.ALONE:
            self.program = group.make(stores, cluster)
            await self.program.run()
            return
        loop = asyncio.get_running_loop()
        self.part = Participation(
            stores.store,
            group.name,
            count=group.shares,
            ttl_s=TTL_S,
            clock=loop.time,
            first_run=partial(is_first_run, stores),
            identity=self.name,
        )
        leadership = self.part.leadership
        enter(leadership=leadership)
        guard = TermGuard(leadership)
        self.program = group.make(stores.guarded(guard), cluster.guarded(guard))
        with leadership.moving(partial(self._moved, group)):
            await self.part.during(self.program.run, self.program.synced)

    def _moved(self, group: "SimulatedGroup", mask: int) -> None:
        self.moved_at = asyncio.get_running_loop().time()
        if mask and (other := group.also_on(mask, self)):
            self.network.on_overlap(f"{self.name} and {other} work on the same keys")

    async def kill(self) -> None:
        """Cancel every task, until all have ended."""
        for _ in range(KILL_ROUNDS):
            self._tasks = [task for task in self._tasks if not task.done()]
            if not self._tasks:
                return
            for task in self._tasks:
                task.cancel()
            await asyncio.sleep(0)


class SimulatedProcess:
    """A process that starts again after each crash, until it is stopped."""

    def __init__(self, name: str, group: "SimulatedGroup", network: Network) -> None:
        self.name = name
        self.failure = ""  # why the program ended last
        self.starts = 0
        self.life = ProcessLife(name, network)
        self._group = group
        self._network = network
        self._stopped = False

    @property
    def program(self) -> Program | None:
        """The program that runs now; None between a crash and the next start."""
        return None if self.life.crashed else self.life.program

    async def run(self) -> None:
        """Run one life after the other until `stop`."""
        while not self._stopped:
            self.starts += 1
            random.seed(f"{self._group.seed}/{self.name}/{self.starts}")
            self.life = life = ProcessLife(self.name, self._network)
            context = contextvars.copy_context()
            context.run(current_life.set, life)
            main = asyncio.get_running_loop().create_task(life.run(self._group), context=context)
            life.joined(main)
            main.add_done_callback(lambda _, life=life: life.over.set())  # type: ignore[misc]
            await life.over.wait()
            if not life.crashed:
                self._ended(main)
                life.crash(RESTART_S)
            await life.kill()
            if not self._stopped:
                await asyncio.sleep(life.restart_s)

    def stop(self) -> None:
        """End the process at once, as a crash does; `run` returns."""
        self._stopped = True
        self.life.crash(0.0)

    def _ended(self, main: "asyncio.Task[None]") -> None:
        error = None if main.cancelled() else main.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        self.failure = "it ended" if error is None else error_text(error)


class SimulatedGroup:
    """The processes of one controller.

    Args:
        make: makes a new instance of the controller.
        network: the network of all processes.
        stores: the stores of all processes.
        mode: whether there is one process, and otherwise how they divide the work.
    """

    def __init__(
        self,
        name: str,
        make: MakeProgram,
        network: Network,
        stores: MemoryStores,
        *,
        seed: int,
        mode: Division = Division.ALONE,
    ) -> None:
        self.name, self.make, self.stores, self.seed, self.mode = name, make, stores, seed, mode
        self.shares = SHARES if mode is Division.SHARED else 1
        names = [name if number == 1 else f"{name}-{number}" for number in range(1, PROCESSES + 1)]
        self.processes = [
            SimulatedProcess(name, self, network)
            for name in names[: 1 if mode is Division.ALONE else PROCESSES]
        ]

    async def run(self) -> None:
        """Run the processes until `stop`."""
        await asyncio.gather(*(process.run() for process in self.processes))

    def stop(self) -> None:
        """End every process at once, as a crash does; `run` returns."""
        for process in self.processes:
            process.stop()

    def restart(self) -> None:
        """End the processes as a crash does; they start again at once."""
        for process in self.processes:
            process.life.crash(0.0)

    @property
    def programs(self) -> list[Program]:
        """The programs that sync now: those of processes with keys."""
        working = [p for p in self.processes if self.mode is Division.ALONE or p.life.works_on]
        return [process.program for process in working if process.program is not None]

    @property
    def idle(self) -> bool:
        """True if every key is synced by a program, and no program has work left."""
        if self.mode is not Division.ALONE:
            now, lives = asyncio.get_running_loop().time(), [p.life for p in self.processes]
            if any(now - life.moved_at < MOVED_S for life in lives):
                return False
            if sum(life.works_on for life in lives) != (1 << self.shares) - 1:
                return False
        programs = self.programs
        return bool(programs) and all(program.idle for program in programs)

    def also_on(self, mask: int, life: ProcessLife) -> str:
        """Return the name of another process that works on one of these shares, empty if none."""
        others = (p for p in self.processes if p.life is not life and p.life.works_on & mask)
        return next((process.name for process in others), "")

    @property
    def failure(self) -> str:
        """The reason why a program ended last; empty if none has ended."""
        return next((process.failure for process in self.processes if process.failure), "")


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that a set of tasks has the same order in each run."""

    def __init__(self, number: int, *args: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number

    def __repr__(self) -> str:  # asyncio's is slow, and each run asks for one
        return f"<task {self._number}>"


class TaskFactory:
    """Makes numbered tasks, and adds each to the process of the task that creates it."""

    def __init__(self) -> None:
        self._count = 0

    def restart(self) -> None:
        """Begin with the first number again."""
        self._count = 0

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> "asyncio.Task[Any]":
        """Make a task."""
        self._count += 1
        task = NumberedTask(self._count, coro, loop=loop, **options)
        life = current_life.get()
        if life is not None:
            life.joined(task)
        return task
