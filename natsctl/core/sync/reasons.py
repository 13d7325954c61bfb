"""Why each key is to be visited."""

import asyncio
from collections.abc import Callable

from natsctl.core.sync.operation import Operation


class Reasons:
    """Remembers, for each key, the strongest reason for its next visit.

    What a person asked for is the strongest, then the most urgent, then the newest.
    """

    def __init__(self) -> None:
        self._now: dict[str, Operation] = {}
        self._later: dict[str, tuple[float, Operation]] = {}

    def add(self, key: str, operation: Operation, *, after: float = 0.0) -> None:
        """Note a reason that holds from *after* seconds from now."""
        if after > 0:
            when = asyncio.get_running_loop().time() + after
            known_when, _ = self._later.get(key, (when, operation))
            if when <= known_when:
                self._later[key] = (when, operation)
        elif key not in self._now or _strength(operation) >= _strength(self._now[key]):
            self._now[key] = operation

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the reasons of keys that are not *wanted*."""
        self._now = {key: why for key, why in self._now.items() if wanted(key)}
        self._later = {key: why for key, why in self._later.items() if wanted(key)}

    def take(self, key: str) -> Operation:
        """Return the reason for a visit that begins now: a retry, where none was given."""
        when, operation = self._later.get(key, (0.0, None))
        if operation is not None and when <= asyncio.get_running_loop().time():
            del self._later[key]
            self.add(key, operation)
        return self._now.pop(key, Operation.RETRY)


def _strength(operation: Operation) -> tuple[bool, int]:
    return operation is Operation.MANUAL, operation.priority
