"""Which keys are this process's own, of all that its controller has."""

from collections.abc import Callable, Hashable
from typing import Protocol

PORTIONS_MAX = 16


class Portion(Protocol):
    """Some of all keys, and always the same ones."""

    def has(self, key: Hashable) -> bool:
        """Say whether the key is one of them."""
        ...

    def within(self, other: "Portion") -> bool:
        """Say whether all of them are in the other too, as far as that is known without looking."""
        ...


class _All:
    def has(self, key: Hashable) -> bool:  # noqa: ARG002 - whichever it is
        return True

    def within(self, other: Portion) -> bool:
        return other is self


class _None:
    def has(self, key: Hashable) -> bool:  # noqa: ARG002 - whichever it is
        return False

    def within(self, other: Portion) -> bool:  # noqa: ARG002 - whichever it is
        return True


ALL: Portion = _All()
NONE: Portion = _None()


class Holdings:
    """The keys that a loop may visit: those of every portion since the one that it has settled in.

    What goes is gone at once. What comes is held only when the loop has settled, which it does once
    its caches show what whoever had the key before wrote.

    Args:
        portion: what is held at first.
    """

    def __init__(self, portion: Portion = ALL) -> None:
        self.has: Callable[[Hashable], bool]
        """Says whether a key is held now; an attribute, for it is asked at every change."""
        self._portions: tuple[Portion, ...] = ()
        self._become(portion)

    @property
    def newest(self) -> Portion:
        """The portion to settle in."""
        return self._portions[-1]

    @property
    def settled(self) -> bool:
        """Whether the newest portion is the one that is settled in."""
        return len(self._portions) == 1

    def reset(self, portion: Portion) -> None:
        """Hold exactly this portion, and be settled in it."""
        self._become(portion)

    def moved(self, portion: Portion) -> None:
        """Take another portion in: what is not in it is not held from now on."""
        if len(self._portions) < PORTIONS_MAX:
            self._become(*self._portions, portion)
        else:  # who moves that often holds nothing until it has settled
            self._become(NONE, portion)

    def settle(self, portion: Portion) -> Callable[[Hashable], bool] | None:
        """Hold what is in this portion, and in those since.

        Returns what says of keys whether they just came; None where none did.
        """
        known = [number for number, each in enumerate(self._portions) if each is portion]
        if not known:
            return None  # it is long past, and the newest one is still to be settled in
        before = self._portions[: known[-1] + 1]
        self._become(*self._portions[known[-1] :])
        if all(portion.within(each) for each in before):
            return None

        def came(key: Hashable) -> bool:
            return portion.has(key) and not all(each.has(key) for each in before)

        return came

    def _become(self, *portions: Portion) -> None:
        self._portions = portions
        self.has = portions[0].has if len(portions) == 1 else self._has

    def _has(self, key: Hashable) -> bool:
        return all(portion.has(key) for portion in self._portions)
