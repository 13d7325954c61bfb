"""Runs a controller in processes that crash and start again, and that may divide its work.

A crash stops every task of the process at its current `await`. From then on the connection of the
process is dead, so the end of the tasks has no effect outside. The next life of the process begins
with a new instance of the controller.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from natsctl.core.coordination.shares import Participation
from natsctl.core.coordination.term import SHARES, TermGuard
from natsctl.core.environment import enter
from natsctl.core.hosted import Hosted
from natsctl.core.installation import is_first_run
from natsctl.core.workqueue import WorkQueue, made_queues
from natsctl.daemon.operator import Runnable
from natsctl.telemetry.hiding import error_text
from natsctl.testing.memory import MemoryStores
from natsctl.testing.simulation.network import Life, Network, SimulatedCluster, SimulatedStores

KILL_ROUNDS = 50  # in which tasks of a crashed process may end
RESTART_S = 1.0  # after a start that failed
PROCESSES = 3  # of a group that divides its work
TTL_S = 20.0  # of their sessions; shorter ones fill a run with heartbeats
MOVED_S = 3.0  # after shares have moved, in which the syncs of their keys begin
QUIET_S = 20.0  # without a call or an event, after which broken watches are open again


class Division(Enum):
    """How the work is divided: one process has all of it, or three processes elect or share."""

    ALONE = "one process"
    ELECTED = "three processes that elect a leader"
    SHARED = "three processes that share the keys"


MakeProgram = Callable[[SimulatedStores, SimulatedCluster], Runnable]
"""Makes a new instance of a controller over the stores that its process sees."""

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


class ProcessLife(Life):
    """One life of a process, with its controller: one in a host, or any other class."""

    def __init__(self, name: str, network: Network) -> None:
        super().__init__(name, network)
        self.program: Runnable | None = None
        self.hosted: Hosted | None = None  # the same, if it's in a host
        self.part: Participation | None = None  # of a process that divides the work with others
        self.moved_at = 0.0  # when it got other shares
        self.queues: list[WorkQueue[Any]] = []  # all that the controller has made
        self.tasks: list[asyncio.Task[Any]] = []

    @property
    def works_on(self) -> int:
        """The shares on which this process may work now, with those whose syncs haven't ended."""
        leadership = None if self.part is None or self.crashed else self.part.leadership
        return leadership.mask | leadership.busy if leadership and leadership.leads else 0

    @property
    def idle(self) -> bool:
        """True if no work is left, apart from work at a requested time.

        A process that stops isn't idle: its next life still has to see what came meanwhile.
        """
        if self.hosted is not None:
            host = self.hosted.host
            return host.idle and host.failure is None and not host.stopping
        return (
            self.program is not None
            and self.program.synced.is_set()
            and all(queue.settled for queue in self.queues)
            and self.network.quiet_s() > QUIET_S
        )

    def requested_s(self, keys: Sequence[str]) -> list[float]:
        """Return the seconds until the times that syncs of these keys asked for."""
        if self.hosted is None or not self.hosted.host.informers:
            return []
        places = (self.hosted.explain(key).queued for key in keys)
        return [place.s for place in places if place and place.place == "waiting"]

    async def run(self, group: "SimulatedGroup") -> None:
        """Run a new controller; raises the error that ends it."""
        made_queues.set(self.queues)
        stores = SimulatedStores(group.stores, self)
        cluster = SimulatedCluster(group.stores.kube, self)
        if group.mode is not Division.ALONE:
            self.part = Participation(
                stores.store,
                group.name,
                count=group.shares,
                ttl_s=TTL_S,
                clock=asyncio.get_running_loop().time,
                first_run=partial(is_first_run, stores),
                identity=self.name,
            )
            guard = TermGuard(self.part.leadership)
            enter(leadership=self.part.leadership)
            stores, cluster = stores.guarded(guard), cluster.guarded(guard)
        self.program = group.make(stores, cluster)
        self.hosted = self.program if isinstance(self.program, Hosted) else None
        if self.part is None:
            await self.program.run()
            return
        with self.part.leadership.moving(partial(self._moved, group)):
            await self.part.during(self.program.run, self.program.synced)

    def _moved(self, group: "SimulatedGroup", mask: int) -> None:
        self.moved_at = asyncio.get_running_loop().time()
        for other in group.processes:
            if other.life is not self and mask & other.life.works_on:
                self.network.on_overlap(f"{self.name} and {other.name} work on the same keys")
                return

    async def kill(self) -> None:
        for _ in range(KILL_ROUNDS):
            self.tasks = [task for task in self.tasks if not task.done()]
            if not self.tasks:
                return
            for task in self.tasks:
                task.cancel()
            await asyncio.sleep(0)


class SimulatedProcess:
    """A process that starts again after each crash, until it is stopped."""

    def __init__(self, name: str, group: "SimulatedGroup") -> None:
        self.name = name
        self.failure = ""  # why the controller ended last
        self.starts = 0
        self.life = ProcessLife(name, group.network)
        self._group = group
        self._stopped = False

    async def run(self) -> None:
        while not self._stopped:
            self.starts += 1
            random.seed(f"{self._group.seed}/{self.name}/{self.starts}")
            self.life = life = ProcessLife(self.name, self._group.network)
            context = contextvars.copy_context()
            context.run(current_life.set, life)
            main = asyncio.get_running_loop().create_task(life.run(self._group), context=context)
            life.tasks.append(main)
            main.add_done_callback(lambda _, life=life: life.over.set())  # type: ignore[misc]
            await life.over.wait()
            if not life.crashed:
                error = None if main.cancelled() else main.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                self.failure = "it ended" if error is None else error_text(error)
                life.crash(RESTART_S)
            await life.kill()
            if not self._stopped:
                await asyncio.sleep(life.restart_s)

    def stop(self) -> None:
        """End the process at once, as a crash does; `run` returns."""
        self._stopped = True
        self.life.crash(0.0)


class SimulatedGroup:
    """The processes of one controller, over the same network and stores.

    *mode* says whether there is one process, and otherwise how they divide the work.
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
        self.name, self.make, self.network, self.stores = name, make, network, stores
        self.seed, self.mode = seed, mode
        self.shares = SHARES if mode is Division.SHARED else 1
        others = [] if mode is Division.ALONE else range(2, PROCESSES + 1)
        names = [name, *(f"{name}-{number}" for number in others)]
        self.processes = [SimulatedProcess(name, self) for name in names]

    async def run(self) -> None:
        await asyncio.gather(*(process.run() for process in self.processes))

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

    @property
    def working(self) -> list[ProcessLife]:
        """The lives whose controllers sync now: those of processes with keys."""
        begun = [p.life for p in self.processes if p.life.program and not p.life.crashed]
        return begun if self.mode is Division.ALONE else [life for life in begun if life.works_on]

    @property
    def idle(self) -> bool:
        """True if every key is synced by a controller, and none has work left."""
        if self.mode is not Division.ALONE:
            now, lives = asyncio.get_running_loop().time(), [p.life for p in self.processes]
            if any(now - life.moved_at < MOVED_S for life in lives):
                return False
            if sum(life.works_on for life in lives) != (1 << self.shares) - 1:
                return False
        working = self.working
        return bool(working) and all(life.idle for life in working)

    @property
    def failure(self) -> str:
        """The reason why a controller ended last; empty if none has ended."""
        return next((process.failure for process in self.processes if process.failure), "")
