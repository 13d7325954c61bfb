"""Saying the same thing only once in a while."""

from collections.abc import Callable

_REMEMBERED = 100


class Repeats:
    """Tells whether a message is worth saying again.

    Each distinct message is, once per `quiet_s` seconds; a hundred of them are remembered.
    """

    def __init__(self, clock: Callable[[], float], quiet_s: float = 30.0) -> None:
        self._clock = clock
        self._quiet_s = quiet_s
        self._said: dict[str, float] = {}

    def due(self, message: str) -> bool:
        """Whether to say *message* now."""
        now = self._clock()
        if now - self._said.get(message, -self._quiet_s) < self._quiet_s:
            return False
        if len(self._said) >= _REMEMBERED:
            self._said.clear()
        self._said[message] = now
        return True
