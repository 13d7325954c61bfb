"""Assignments: the keys of a controller that belong to this process."""

from collections.abc import Callable, Collection, Hashable
from typing import Protocol

ASSIGNMENTS_MAX = 16


class Assignment(Protocol):
    """A fixed set of keys."""

    def has(self, key: Hashable) -> bool:
        """Return whether the set contains the key."""
        ...

    def within(self, other: "Assignment") -> bool:
        """Return whether the other set is known to contain all keys of this one."""
        ...


class _All:
    def has(self, key: Hashable) -> bool:  # noqa: ARG002 - every key
        return True

    def within(self, other: Assignment) -> bool:
        return other is self


class _None:
    def has(self, key: Hashable) -> bool:  # noqa: ARG002 - no key
        return False

    def within(self, other: Assignment) -> bool:  # noqa: ARG002 - every set
        return True


class OnlyKeys:
    """The set of these keys."""

    def __init__(self, keys: Collection[Hashable]) -> None:
        self._keys = frozenset(keys)

    def has(self, key: Hashable) -> bool:
        """See `Assignment.has`."""
        return key in self._keys

    def within(self, other: Assignment) -> bool:
        """See `Assignment.within`."""
        return all(map(other.has, self._keys))


ALL: Assignment = _All()
NONE: Assignment = _None()


class HeldAssignments:
    """The keys that a loop may sync: those in the settled assignment and in all newer ones.

    A key that leaves is dropped at once. A key that arrives is held only after `settle`, which the
    loop calls when its caches show what the last owner of the key wrote.
    """

    def __init__(self, assignment: Assignment = ALL) -> None:
        self.has: Callable[[Hashable], bool]
        """Returns whether a key is held; an attribute, because every change calls it."""
        self.may_have: Callable[[Hashable], bool]
        """Returns whether a key is held, or will be when a newer assignment is settled."""
        self._assignments: tuple[Assignment, ...] = ()  # the settled one first
        self._set(assignment)

    @property
    def newest(self) -> Assignment:
        """The newest assignment."""
        return self._assignments[-1]

    @property
    def settled(self) -> bool:
        """True if the newest assignment is settled."""
        return len(self._assignments) == 1

    def count(self, keys: Collection[Hashable]) -> int:
        """Return how many of the keys are held."""
        return len(keys) if self._assignments == (ALL,) else sum(map(self.has, keys))

    def reset(self, assignment: Assignment) -> None:
        """Hold exactly this assignment, which is settled."""
        self._set(assignment)

    def moved(self, assignment: Assignment) -> bool:
        """Add a newer assignment: keys outside of it are dropped.

        Returns False if older assignments were forgotten because there were too many.
        """
        if len(self._assignments) < ASSIGNMENTS_MAX:
            self._set(*self._assignments, assignment)
            return True
        self._set(NONE, assignment)  # hold no key until the newest one is settled
        return False

    def settle(self, assignment: Assignment) -> Callable[[Hashable], bool] | None:
        """Settle this assignment, and drop older ones.

        Returns a function that tests if a key has just arrived, or None if no key has.
        """
        matching = [n for n, held in enumerate(self._assignments) if held is assignment]
        if not matching:
            return None  # it was replaced; the newest one is still to be settled
        before = self._assignments[: matching[-1] + 1]
        self._set(*self._assignments[matching[-1] :])
        if all(assignment.within(older) for older in before):
            return None
        if NONE in before:
            return assignment.has

        def arrived(key: Hashable) -> bool:
            return assignment.has(key) and not all(older.has(key) for older in before)

        return arrived

    def _set(self, *assignments: Assignment) -> None:
        self._assignments = assignments
        if len(assignments) == 1:
            self.has = self.may_have = assignments[0].has
        else:
            self.has, self.may_have = self._all_have, self._any_has

    def _all_have(self, key: Hashable) -> bool:
        return all(assignment.has(key) for assignment in self._assignments)

    def _any_has(self, key: Hashable) -> bool:
        return any(assignment.has(key) for assignment in self._assignments)


class KeptKeys:
    """The keys whose values a process keeps, so that it seldom looks for missing and spare values.

    A process keeps the values of all assignments that are not settled, and those of the *expected*
    one until its first term. None means that the keys are not known, which only costs a search.
    """

    def __init__(self, expected: Assignment | None = None) -> None:
        self._complete = expected  # no value of these keys is missing
        self._kept = [] if expected is None else [expected]  # no other values are kept
        self._known = expected is not None

    def moved(self, assignment: Assignment, *, older_held: bool) -> None:
        """Note the next assignment; without *older_held*, values of older ones may go."""
        if assignment is not NONE:
            self._kept.append(assignment)
        if not older_held:
            self._complete = None

    def ended(self, expected: Assignment | None) -> None:
        """Note the end of a term: only the values of the *expected* assignment are kept now."""
        if self._complete is not expected:
            self._complete = None

    def lacks(self, assignment: Assignment) -> bool:
        """Return whether values of the assignment may be missing."""
        return self._complete is None or not _covers(self._complete, assignment)

    def read(self, assignment: Assignment | None) -> None:
        """Note that no value of the assignment is missing; None if there is a newer one."""
        self._complete = assignment

    def exceeds(self, assignment: Assignment) -> bool:
        """Return whether values outside of the assignment may be kept."""
        return not (self._known and all(_covers(assignment, kept) for kept in self._kept))

    def released(self, assignment: Assignment) -> None:
        """Note that only values of the assignment, which is the newest, are kept."""
        self._kept, self._known = [assignment], True


def _covers(wide: Assignment, narrow: Assignment) -> bool:
    return wide is ALL or wide is narrow or narrow.within(wide)
