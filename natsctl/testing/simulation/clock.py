"""The event loop of a simulation, and the randomness of its processes."""

import random

from natsctl.testing.time import VirtualTimeLoop


class SimulationLoop(VirtualTimeLoop):
    """An event loop for many runs, one after the other; each begins at time 0."""

    def restart(self) -> None:
        """Set the clock to 0; every task must have ended."""
        self._now = 0.0

    def call_exception_handler(self, context: dict[str, object]) -> None:
        """Ignore errors of tasks that nobody awaits: their process has crashed."""


def reseed(seed: int, process: str) -> None:
    """Give a process that starts its own randomness."""
    random.seed(f"{seed}/{process}")
