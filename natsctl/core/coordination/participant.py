"""A process's part in the work on a controller that others run too."""

import asyncio
import logging
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine

from natsctl.core.coordination.lease import TTL_MAX_S, TTL_MIN_S, Workload
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.core.task_group import together
from natsctl.errors import UsageError

log = logging.getLogger(__name__)

RELEASE_S = 2.0  # how long ending what was cut short, and giving back what is ours, may take


VacantByName = Callable[[str], Awaitable[bool]]
"""Returns whether no process can work on a controller of which the leases have no trace."""


async def always_vacant(_name: str) -> bool:
    """Return that no process can."""
    return True


def steady() -> float:
    """Return seconds that go on while this process is stopped, and its machine sleeps.

    Not the loop's clock: uvloop's stands still while a callback runs.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def new_identity() -> str:
    """Return a name that nobody else has: host, process and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def check_ttl(ttl_s: float) -> None:
    """Raise `UsageError` unless a lease of that time to live can be renewed, and ends some day."""
    if not ttl_s >= TTL_MIN_S:
        raise UsageError(f"a lease of {ttl_s:g} s is too short: give it {TTL_MIN_S:g} s or more")
    if ttl_s > TTL_MAX_S:
        raise UsageError(f"a lease of {ttl_s:g} s is too long: give it {TTL_MAX_S:g} s or less")


def foreign(name: str, holder: str, theirs: Workload, ours: Workload) -> str:
    """Return an error message: a process that works on something else has the controller's name."""
    return (
        f"{holder} runs another controller that is named {name} too: it works on {theirs}, this "
        f"one on {ours}: set another `name` on one of them"
    )


class Participant(ABC):
    """Takes part while work goes on; when and on what that is done, `leadership` says.

    Args:
        leadership: what the work asks.
        what: is kept in the store that this part is about, for logs: `lease`.
    """

    def __init__(self, leadership: Leadership, what: str) -> None:
        self.leadership = leadership
        self._what = what
        self._trouble = ""  # what was last logged of it
        self._known = False  # whether the store answered when it was last asked

    async def during(self, work: Coroutine[None, None, None], synced: asyncio.Event) -> None:
        """Take part while *work* goes on, whose loops run only in terms.

        A term is sought once a loop is ready to run, or *synced* says that there is none. What is
        ours is given back when the work has ended. Raises what the work raises.
        """
        current_leadership.set(self.leadership)
        async with together() as group:
            working = group.create_task(work)
            others = (
                group.create_task(self._sought(synced)),
                group.create_task(self._take_part(), name=f"{self._what} of {self.name}"),
            )
            try:
                await asyncio.wait((working,))
            finally:
                for task in others:
                    task.cancel()

    @property
    def name(self) -> str:
        """The controller's."""
        return self.leadership.name

    async def _sought(self, synced: asyncio.Event) -> None:
        await synced.wait()
        self.leadership.sought.set()

    @abstractmethod
    async def _take_part(self) -> None:
        """Seek one term after another, until cancelled; then give back what is ours."""

    def _note(self, error: Exception) -> None:
        """Say what is wrong with the store, once."""
        self._known = False
        if text_of(error) != self._trouble:
            self._trouble = text_of(error)
            log.warning("%s: the %s is out of reach: %s", self.name, self._what, self._trouble)

    def _well(self) -> None:
        self._known, self._trouble = True, ""


def text_of(error: Exception) -> str:
    """Return what the error says, or what none says means."""
    return str(error) or "nobody answered in time"
