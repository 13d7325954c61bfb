"""Makes the clock and the randomness of this process depend on a seed.

Within `reproducible`, `time.time`, `time.time_ns` and `datetime.now` follow the virtual time of the
event loop, and `random`, `os.urandom`, `uuid.uuid4` and `secrets` depend on the seed.
"""

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from types import ModuleType, SimpleNamespace
from typing import Self

from natsctl.core.coordination import lease

BEGIN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""The wall clock at the start of each run of a simulation."""


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


@contextmanager
def reproducible(
    loop: asyncio.AbstractEventLoop, modules: Iterable[ModuleType] = (), *, begin: float = BEGIN
) -> Iterator[None]:
    """Replace the clock and the randomness of this process while the context is open.

    The wall clock is *begin*, in seconds since 1970, at time 0 of the loop. `datetime` is replaced
    in the *modules*, and in those of natsctl.
    """
    state = random.getstate()
    replaced = list(_replacements(lambda: begin + loop.time(), modules))
    for owner, name, new, _ in replaced:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, _, old in replaced:
            setattr(owner, name, old)
        random.setstate(state)


@contextmanager
def silent() -> Iterator[None]:
    """Keep the log lines of natsctl from the log of the process while the context is open."""
    logger = logging.getLogger("natsctl")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _replacements(
    wall_clock: Callable[[], float], modules: Iterable[ModuleType]
) -> Iterator[tuple[ModuleType, str, object, object]]:
    functions: tuple[tuple[ModuleType, str, object], ...] = (
        (time, "time", wall_clock),
        (time, "time_ns", lambda: int(wall_clock() * 1e9)),
        (os, "urandom", random.randbytes),
        (random, "_urandom", random.randbytes),  # `secrets` and `SystemRandom` read it
        (lease, "os", SimpleNamespace(getpid=lambda: 1)),  # for the name of the process
        (lease, "socket", SimpleNamespace(gethostname=lambda: "simulated")),
    )
    for owner, name, new in functions:
        yield owner, name, new, getattr(owner, name)
    ours = [module for name, module in sys.modules.items() if name.startswith("natsctl.")]
    virtual = _virtual_datetime(wall_clock)
    for module in {*modules, *ours}:
        if vars(module).get("datetime") is datetime and module.__name__ != __name__:
            yield module, "datetime", virtual, datetime
