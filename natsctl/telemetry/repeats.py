"""Limits how often the same message is logged."""

from collections.abc import Callable

_REMEMBERED = 100


class Repeats:
    """Permits each distinct message once per `quiet_s` seconds.

    Forgets all messages when it has a hundred, so that its memory is bounded.
    """

    def __init__(self, clock: Callable[[], float], quiet_s: float = 30.0) -> None:
        self._clock = clock
        self._quiet_s = quiet_s
        self._logged: dict[str, float] = {}

    def due(self, message: str) -> bool:
        """Return whether *message* should be logged now."""
        now = self._clock()
        if now - self._logged.get(message, -self._quiet_s) < self._quiet_s:
            return False
        if len(self._logged) >= _REMEMBERED:
            self._logged.clear()
        self._logged[message] = now
        return True
