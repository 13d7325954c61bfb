"""Runs a program in a process that crashes and starts again.

A crash stops every task of the process at its current `await`. From then on the connection of the
process is dead, so the end of the tasks has no effect outside. The next life of the process begins
with a new instance of the program.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from natsctl.core.coordination.term import Leadership, TermGuard, current_leadership
from natsctl.core.workqueue import WorkQueue, made_queues
from natsctl.telemetry.hiding import error_text
from natsctl.testing.cluster import MemoryCluster
from natsctl.testing.memory import MemoryStores
from natsctl.testing.simulation.world.network import Network
from natsctl.testing.simulation.world.stores import (
    SimulatedCluster,
    SimulatedConnection,
    SimulatedStores,
)

KILL_ROUNDS = 50  # in which tasks of a crashed process may end
RESTART_S = 1.0  # after a start that failed


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
        self.leadership: Leadership | None = None  # of a process that takes part in an election
        self.queues: list[WorkQueue[Any]] = []  # all that the program has made
        self._tasks: list[asyncio.Task[Any]] = []

    def crash(self, restart_s: float) -> None:
        self.crashed = True
        self.restart_s = restart_s
        self.over.set()

    def joined(self, task: asyncio.Task[Any]) -> None:
        """Note a task of this life."""
        self._tasks.append(task)

    async def run(self, make: MakeProgram, nats: MemoryStores, kube: MemoryCluster) -> None:
        """Run a new program; raises the error that ends it."""
        made_queues.set(self.queues)
        connection = SimulatedConnection(self.network, self, self.name)
        stores, cluster = SimulatedStores(nats, connection), SimulatedCluster(kube, connection)
        if (lease := self.network.lease) is not None:
            loop = asyncio.get_running_loop()
            self.leadership = leadership = Leadership(self.name, loop.time)
            current_leadership.set(leadership)
            self._election = loop.create_task(lease.take_part(leadership), name="lease")
            guard = TermGuard(leadership)
            stores, cluster = stores.guarded(guard), cluster.guarded(guard)
        self.program = make(stores, cluster)
        await self.program.run()

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

    def __init__(
        self, name: str, make: MakeProgram, network: Network, stores: MemoryStores, *, seed: int
    ) -> None:
        self.name = name
        self.failure = ""  # why the program ended last
        self.starts = 0
        self.life = ProcessLife(name, network)
        self._make = make
        self._network = network
        self._stores = stores
        self._seed = seed
        self._stopped = False

    @property
    def program(self) -> Program | None:
        """The program that runs now; None between a crash and the next start."""
        return None if self.life.crashed else self.life.program

    @property
    def idle(self) -> bool:
        """True if the program runs and has no work left."""
        program = self.program
        return program is not None and program.idle

    async def run(self) -> None:
        """Run one life after the other until `stop`."""
        while not self._stopped:
            self.starts += 1
            random.seed(f"{self._seed}/{self.name}/{self.starts}")
            self.life = life = ProcessLife(self.name, self._network)
            context = contextvars.copy_context()
            context.run(current_life.set, life)
            work = life.run(self._make, self._stores, self._stores.kube)
            main = asyncio.get_running_loop().create_task(work, context=context)
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
