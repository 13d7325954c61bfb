"""A group of simulated processes that share the keys of one controller over stores in memory."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from natsctl import Controller, Operator, kv
from natsctl.core.coordination.shares import participations
from natsctl.core.coordination.term import SHARES
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.jetstream.store import LEASES
from natsctl.testing import MemoryStores
from tests.support.eventually import eventually

TTL_S = 10.0
MEMBERS_MAX = 4

C = TypeVar("C", bound=Controller)

Step = tuple[tuple[str, Any], float]
"""An action with its argument, and the seconds until the next step."""

ApplyStep = Callable[[str, Any], Awaitable[None]]


class SharingMember(Generic[C]):
    """A process with one controller."""

    def __init__(self, stores: MemoryStores, controller: C) -> None:
        self.controller = controller
        make = participations(
            stores.store,
            count=SHARES,
            ttl_s=TTL_S,
            clock=asyncio.get_running_loop().time,
        )
        settings = ControllerSettings(stop_timeout_s=1000.0)
        self.operator = Operator(
            [controller], nats=stores, kube=stores.kube, participate=make, settings=settings
        )
        self.task = asyncio.create_task(self.operator.run())
        self.leaving = False

    def holds(self, key: str) -> bool:
        return self.controller.runtime.holds(key)

    def leave(self) -> None:
        self.leaving = True
        self.operator.stop()

    async def kill(self) -> None:
        self.leaving = True
        self.task.cancel()
        await asyncio.wait((self.task,))


class SharingGroup(Generic[C]):
    """The processes of a group; *make* makes the controller of a process."""

    def __init__(self, make: Callable[[], C]) -> None:
        self.stores = MemoryStores()
        self.stores.store(kv(bytes, bucket=LEASES.bucket, history=1))
        self.members: list[SharingMember[C]] = []
        self._make = make

    @property
    def living(self) -> list[SharingMember[C]]:
        return [member for member in self.members if not member.leaving]

    def start(self, size: int) -> None:
        """Start the first members."""
        for _ in range(size):
            self.members.append(SharingMember(self.stores, self._make()))

    async def change(self, action: str, argument: str) -> None:
        """Let a process join, leave or be killed; the argument is the number of a member."""
        living = self.living
        member = living[int(argument) % len(living)] if argument.isdigit() and living else None
        match action:
            case "join" if len(living) < MEMBERS_MAX:
                self.members.append(SharingMember(self.stores, self._make()))
            case "leave" if member is not None and len(living) > 1:
                member.leave()
            case "kill" if member is not None and len(living) > 1:
                await member.kill()
            case _:
                pass

    def check_shared(self, keys: Sequence[str]) -> None:
        """Check that the living members share the keys, and that each key has one member."""
        living = self.living
        states = [shard.state() for m in living for shard in m.operator.participations.values()]
        assert all(len(state.members) == len(living) and not state.moving for state in states)
        held = [key for member in living for key in keys if member.holds(key)]
        assert sorted(held) == sorted(keys)

    async def play(
        self, steps: Sequence[Step], apply_step: ApplyStep, settled: Callable[[], Any]
    ) -> None:
        """Apply the steps, wait until everything has settled, and close the group."""
        for (action, argument), then_s in steps:
            await apply_step(action, argument)
            await asyncio.sleep(then_s)
        await eventually(settled, within_s=20 * TTL_S, every_s=0.5)
        await self.close()

    async def close(self) -> None:
        for member in self.living:
            member.leave()
        await asyncio.gather(*(m.task for m in self.members if not m.task.done()))
