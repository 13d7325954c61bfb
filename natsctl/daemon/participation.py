"""A process's part in the work on a controller that others run too."""

import asyncio
import logging
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine

from natsctl.core.leadership import Leadership, current_leadership
from natsctl.core.tasks import together
from natsctl.errors import UsageError

log = logging.getLogger(__name__)

TTL_MIN_S = 1.0
RELEASE_S = 2.0  # how long ending what was cut short, and giving back what is ours, may take


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
    """Raise `UsageError` where a lease of that time to live could hardly be renewed in time."""
    if ttl_s < TTL_MIN_S:
        raise UsageError(f"a lease of {ttl_s:g} s is too short: give it {TTL_MIN_S:g} s or more")


class Participation(ABC):
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
