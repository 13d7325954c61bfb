"""Finds the shortest script and fault list that still violates the same property."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from natsctl.testing.simulation.run import Ran, Schedule
from natsctl.testing.simulation.script import Step, StepPause
from natsctl.testing.simulation.world.faults import Fault
from natsctl.testing.simulation.world.process import Division

T = TypeVar("T")

TRIES_MAX = 400

RunSchedule = Callable[[Schedule], Ran]
IsComplete = Callable[[Sequence[Step]], bool]


class Shrinker:
    """Shrinks one schedule.

    Args:
        run: runs a schedule.
        ran: the run of the schedule that violates a property.
        complete: returns whether a script has every step that a controller may rely on.
    """

    def __init__(
        self, run: RunSchedule, schedule: Schedule, ran: Ran, complete: IsComplete
    ) -> None:
        self.schedule = msgspec.structs.replace(schedule, faults=ran.faults)
        self.ran = ran
        self._run = run
        self._complete = complete
        self._tries = 0

    def shrink(self) -> None:
        """Replace schedule and run by the smallest ones that are found within `TRIES_MAX` runs."""
        before = None
        while before != self.schedule and self._tries < TRIES_MAX:
            before = self.schedule
            self._try(msgspec.structs.replace(self.schedule, mode=Division.ALONE))
            self._try(msgspec.structs.replace(self.schedule, hurried=True))
            self._remove_items(self.schedule.faults or (), self._with_faults)
            self._remove_items(self.schedule.script, self._with_script)
            self._wait_for_idle()
            self._earlier()

    def _remove_items(
        self, items: Sequence[T], changed: Callable[[tuple[T, ...]], Schedule]
    ) -> None:
        """Remove as many items as possible, first in large parts and then one by one."""
        size = len(items)
        while size >= 1:
            start = 0
            while start < len(items) and self._tries < TRIES_MAX:
                fewer = (*items[:start], *items[start + size :])
                if self._try(changed(fewer)):
                    items = fewer
                else:
                    start += size
            size //= 2

    def _wait_for_idle(self) -> None:
        """Wait for an idle controller before as many steps as possible."""
        for number, step in enumerate(self.schedule.script):
            if step.pause is not StepPause.IDLE and self._tries < TRIES_MAX:
                calm = msgspec.structs.replace(step, pause=StepPause.IDLE)
                script = self.schedule.script
                self._try(self._with_script((*script[:number], calm, *script[number + 1 :])))

    def _earlier(self) -> None:
        """Move each fault to an earlier call of the same operation."""
        for number, fault in enumerate(self.schedule.faults or ()):
            for earlier_fault in _earlier(fault):
                faults = list(self.schedule.faults or ())
                faults[number] = earlier_fault
                if self._try(self._with_faults(tuple(faults))):
                    break

    def _with_faults(self, faults: tuple[Fault, ...]) -> Schedule:
        return msgspec.structs.replace(self.schedule, faults=faults)

    def _with_script(self, script: tuple[Step, ...]) -> Schedule:
        return msgspec.structs.replace(self.schedule, script=script)

    def _try(self, schedule: Schedule) -> bool:
        """Keep the schedule if it violates the same property; return whether it does."""
        if schedule == self.schedule or not self._complete(schedule.script):
            return False
        self._tries += 1
        ran = self._run(schedule)
        before = self.ran.violation
        if ran.violation is None or before is None:
            return False
        if ran.violation.property is not before.property:
            return False
        self.schedule = msgspec.structs.replace(schedule, faults=ran.faults)
        self.ran = ran
        return True


def _earlier(fault: Fault) -> Iterator[Fault]:
    for number in range(1, min(fault.call.number, 4)):
        call = msgspec.structs.replace(fault.call, number=number)
        yield msgspec.structs.replace(fault, call=call)
