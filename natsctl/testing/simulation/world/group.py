"""Runs the processes of one controller: a single one, or a leader and a standby."""

import asyncio

from natsctl.testing.memory import MemoryStores
from natsctl.testing.simulation.world.network import Network
from natsctl.testing.simulation.world.process import MakeProgram, Program, SimulatedProcess


class SimulatedGroup:
    """The processes of one controller, of which one syncs at a time.

    Args:
        make: makes a new instance of the controller.
        network: the network; if it has a lease, a second process stands by.
        stores: the stores of all processes.
    """

    def __init__(
        self, name: str, make: MakeProgram, network: Network, stores: MemoryStores, *, seed: int
    ) -> None:
        self._lease = network.lease
        names = (name,) if self._lease is None else (name, f"{name} on standby")
        self._processes = [
            SimulatedProcess(name, make, network, stores, seed=seed) for name in names
        ]

    async def run(self) -> None:
        """Run the processes until `stop`."""
        await asyncio.gather(*(process.run() for process in self._processes))

    def stop(self) -> None:
        """End every process at once, as a crash does; `run` returns."""
        for process in self._processes:
            process.stop()

    def restart(self) -> None:
        """End the processes as a crash does; they start again at once."""
        for process in self._processes:
            process.life.crash(0.0)

    @property
    def program(self) -> Program | None:
        """The program that syncs; None between a crash and the next start."""
        if self._lease is None:
            return self._processes[0].program
        holder = self._lease.holder
        leading = (process for process in self._processes if process.life.leadership is holder)
        leader = next(leading, None) if holder is not None else None
        return None if leader is None else leader.program

    @property
    def idle(self) -> bool:
        """True if a program syncs and has no work left."""
        program = self.program
        moving = self._lease is not None and not self._lease.settled
        return program is not None and not moving and program.idle

    @property
    def failure(self) -> str:
        """The reason why a program ended last; empty if none has ended."""
        return next((process.failure for process in self._processes if process.failure), "")
