"""Which keys are this process's own, of all that its controller has."""

from collections.abc import Callable, Hashable
from typing import Protocol

ASSIGNMENTS_MAX = 16


class Assignment(Protocol):
    """Some of all keys, and always the same ones."""

    def has(self, key: Hashable) -> bool:
        """Say whether the key is one of them."""
        ...

    def within(self, other: "Assignment") -> bool:
        """Say whether all of them are in the other too, as far as that is known without looking."""
        ...


class _All:
    def has(self, key: Hashable) -> bool:  # noqa: ARG002 - whichever it is
        return True

    def within(self, other: Assignment) -> bool:
        return other is self


class _None:
    def has(self, key: Hashable) -> bool:  # noqa: ARG002 - whichever it is
        return False

    def within(self, other: Assignment) -> bool:  # noqa: ARG002 - whichever it is
        return True


ALL: Assignment = _All()
NONE: Assignment = _None()


class HeldAssignments:
    """The keys that a loop may sync: those of every assignment since the one it settled in.

    What goes is gone at once. What comes is held only when the loop has settled, which it does once
    its caches show what whoever had the key before wrote.

    Args:
        assignment: what is held at first.
    """

    def __init__(self, assignment: Assignment = ALL) -> None:
        self.has: Callable[[Hashable], bool]
        """Says whether a key is held now; an attribute, for it is asked at every change."""
        self._assignments: tuple[Assignment, ...] = ()
        self._become(assignment)

    @property
    def newest(self) -> Assignment:
        """The assignment to settle in."""
        return self._assignments[-1]

    @property
    def settled(self) -> bool:
        """Whether the newest assignment is the one that is settled in."""
        return len(self._assignments) == 1

    def reset(self, assignment: Assignment) -> None:
        """Hold exactly this assignment, and be settled in it."""
        self._become(assignment)

    def moved(self, assignment: Assignment) -> None:
        """Take another assignment in: what is not in it is not held from now on."""
        if len(self._assignments) < ASSIGNMENTS_MAX:
            self._become(*self._assignments, assignment)
        else:  # who moves that often holds nothing until it has settled
            self._become(NONE, assignment)

    def settle(self, assignment: Assignment) -> Callable[[Hashable], bool] | None:
        """Hold what is in this assignment, and in those since.

        Returns what says of keys whether they just came; None where none did.
        """
        known = [number for number, each in enumerate(self._assignments) if each is assignment]
        if not known:
            return None  # it is long past, and the newest one is still to be settled in
        before = self._assignments[: known[-1] + 1]
        self._become(*self._assignments[known[-1] :])
        if all(assignment.within(each) for each in before):
            return None

        def came(key: Hashable) -> bool:
            return assignment.has(key) and not all(each.has(key) for each in before)

        return came

    def _become(self, *assignments: Assignment) -> None:
        self._assignments = assignments
        self.has = assignments[0].has if len(assignments) == 1 else self._has

    def _has(self, key: Hashable) -> bool:
        return all(assignment.has(key) for assignment in self._assignments)
