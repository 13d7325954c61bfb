"""Decides which process of a simulation leads, without records and renewals.

A fault or a crash moves the lease at any await. The terms are those of the real leader election, so
that a term which is over stops the syncs and the writes of its process.
"""

import asyncio
import math

from natsctl.core.coordination.term import Leadership

STAND_BY_S = 1.0  # how long a process that has lost the lease leaves it to the others
BEGIN_S = 0.05  # in which the syncs of a new term begin


class SimulatedLease:
    """The lease of one controller, which one process holds at a time."""

    def __init__(self) -> None:
        self.holder: Leadership | None = None
        self.settled = False  # a term has begun, and its syncs too
        self._epoch = 0
        self._changed = asyncio.Event()

    async def take_part(self, leadership: Leadership) -> None:
        """Lead whenever no other process does, until cancelled."""
        await leadership.sought.wait()
        try:
            while True:
                await self._hold(leadership)
                await leadership.quiet()
                await asyncio.sleep(STAND_BY_S)
        finally:
            if self.holder is leadership:
                self.move()

    def move(self) -> None:
        """End the term of the holder at once; the next process begins one."""
        holder, self.holder, self.settled = self.holder, None, False
        if holder is not None:
            holder.lose()
        self._change()

    async def _hold(self, leadership: Leadership) -> None:
        """Wait for the lease, and hold it until it moves."""
        while self.holder is not None:
            await self._changed.wait()
        self.holder = leadership
        self._epoch += 1
        leadership.begin(self._epoch, math.inf)
        await asyncio.sleep(BEGIN_S)
        self.settled |= self.holder is leadership
        while self.holder is leadership:
            await self._changed.wait()

    def _change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
