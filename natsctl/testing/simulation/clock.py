"""Makes the clock and the randomness of a run depend on its seed.

Within `reproducible`, `time.time`, `time.time_ns` and `datetime.now` follow the virtual time of the
event loop, and `random`, `os.urandom`, `uuid.uuid4` and `secrets` depend on the seed. The names of
host and process are constant.
"""

import asyncio
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from types import ModuleType
from typing import Self

from natsctl.testing.time import VirtualTimeLoop

BEGIN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""The wall clock at the start of each run."""


class SimulationLoop(VirtualTimeLoop):
    """An event loop for many runs, one after the other; each begins at time 0."""

    def restart(self) -> None:
        """Set the clock to 0; every task must have ended."""
        self._now = 0.0

    def call_exception_handler(self, context: dict[str, object]) -> None:
        """Ignore errors of tasks that nobody awaits: their process has crashed."""


def _virtual_datetime(wall_clock: Callable[[], float]) -> type[datetime]:
    class VirtualDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(wall_clock(), tz)

        @classmethod
        def utcnow(cls) -> Self:
            return cls.fromtimestamp(wall_clock(), UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Self:
            return cls.fromtimestamp(wall_clock())

    return VirtualDatetime


def reseed(seed: int, process: str) -> None:
    """Give a process that starts its own randomness."""
    random.seed(f"{seed}/{process}")


@contextmanager
def reproducible(
    loop: asyncio.AbstractEventLoop, modules: Iterable[ModuleType] = ()
) -> Iterator[None]:
    """Replace the clock and the randomness of this process while the context is open.

    `datetime` is replaced in the *modules*, and in those of natsctl.
    """
    state = random.getstate()
    replaced = list(_replacements(lambda: BEGIN + loop.time(), modules))
    for owner, name, new, _ in replaced:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, _, old in replaced:
            setattr(owner, name, old)
        random.setstate(state)


def _replacements(
    wall_clock: Callable[[], float], modules: Iterable[ModuleType]
) -> Iterator[tuple[ModuleType, str, object, object]]:
    functions: tuple[tuple[ModuleType, str, object], ...] = (
        (time, "time", wall_clock),
        (time, "time_ns", lambda: int(wall_clock() * 1e9)),
        (os, "urandom", random.randbytes),
        (random, "_urandom", random.randbytes),  # `secrets` and `SystemRandom` read it
        (os, "getpid", lambda: 1),  # part of the name of a process
        (socket, "gethostname", lambda: "simulated"),
    )
    for owner, name, new in functions:
        yield owner, name, new, getattr(owner, name)
    ours = [module for name, module in sys.modules.items() if name.startswith("natsctl.")]
    virtual = _virtual_datetime(wall_clock)
    for module in {*modules, *ours}:
        if vars(module).get("datetime") is datetime and module.__name__ != __name__:
            yield module, "datetime", virtual, datetime
