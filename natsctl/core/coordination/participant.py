"""Takes part in the work on a controller that other processes run too."""

import asyncio
import math
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from natsctl.core.coordination.own_record import (
    RENEW,
    RETRY,
    TTL_MAX_S,
    TTL_MIN_S,
    OwnRecord,
    Workload,
)
from natsctl.core.coordination.term import Clock, Leadership, current_leadership
from natsctl.core.task_group import together
from natsctl.errors import ConflictError, NotLeadingError, StoreError, UsageError
from natsctl.telemetry.logger import get_logger
from natsctl.time_limit import happens

log = get_logger(__name__)

RELEASE_S = 2.0  # limit for the end of cancelled work and the release of the record
PAUSE_S = 0.001  # the shortest wait, because clocks and timers differ by less

Work = Callable[[], Coroutine[None, None, None]]
"""Runs a controller."""


def steady() -> float:
    """Return seconds that go on while this process is stopped and while its machine sleeps.

    The event loop's clock is unsuitable: uvloop's stands still while a callback runs.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def new_identity() -> str:
    """Return a unique name of this process: host, process id and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def check_ttl(ttl_s: float) -> None:
    """Raise `UsageError` for a time to live that is too short to renew, or too long."""
    if not ttl_s >= TTL_MIN_S:
        raise UsageError(f"a lease of {ttl_s:g} s is too short: give it {TTL_MIN_S:g} s or more")
    if ttl_s > TTL_MAX_S:
        raise UsageError(f"a lease of {ttl_s:g} s is too long: give it {TTL_MAX_S:g} s or less")


def name_taken(name: str, holder: str, theirs: Workload, ours: Workload) -> str:
    """Return an error message: another controller has the same name, or works elsewhere."""
    if theirs.only_elsewhere(ours):
        return (
            f"{holder} runs {name} in another Kubernetes cluster: it works in the cluster "
            f"{theirs.cluster}, this one in {ours.cluster}: give both the same kubeconfig, or set "
            "another `name` on one of them"
        )
    return (
        f"{holder} runs another controller that is named {name} too: it works on {theirs}, this "
        f"one on {ours}: set another `name` on one of them"
    )


class Participant(ABC):
    """Renews the record of this process, and begins and ends its terms.

    Logs call the record *noun*.
    """

    def __init__(
        self, leadership: Leadership, own: OwnRecord[Any], noun: str, *, clock: Clock
    ) -> None:
        self.leadership = leadership
        self._own = own
        self._noun = noun
        self._clock = clock
        self._trouble = ""  # the last error that was logged
        self._known = False  # whether the last request to the store succeeded
        self._retry_at = -math.inf  # the earliest next write after one that failed
        self._changed = asyncio.Event()  # there may be a decision to make before the next renewal

    @property
    def name(self) -> str:
        """The controller's name."""
        return self.leadership.name

    async def during(self, work: Work, synced: asyncio.Event) -> None:
        """Call *work*, whose loops run in terms only, and take part until it has ended.

        A term is sought once a loop is ready to run, or *synced* is set because there is no loop.
        The record is released after *work* has ended. Raises what *work* raises.
        """
        current_leadership.set(self.leadership)
        async with together() as group:
            working = group.create_task(work())
            helper_tasks = (
                group.create_task(self._seek_after(synced)),
                group.create_task(self._take_part(), name=f"{self._noun} of {self.name}"),
            )
            try:
                await asyncio.wait((working,))
            finally:
                for task in helper_tasks:
                    task.cancel()

    async def _seek_after(self, synced: asyncio.Event) -> None:
        await synced.wait()
        self.leadership.sought.set()

    async def _take_part(self) -> None:
        await self.leadership.sought.wait()
        try:
            await self._run_terms()
        finally:
            self.leadership.lose()
            await self._give_up_record()

    @abstractmethod
    async def _run_terms(self) -> None:
        """Run one term after another until cancelled."""

    @abstractmethod
    async def _write(self) -> None:
        """Write the record once; raises `StoreError`."""

    @abstractmethod
    async def _release(self) -> None:
        """Let other processes have the work at once; raises `StoreError`."""

    @abstractmethod
    def _log_lost(self, reason: str) -> None:
        """Log that a term ended although the work has not."""

    async def _give_up_record(self) -> None:
        """Release the record if no work of a term runs any more, or leave it to expire."""
        try:
            async with asyncio.timeout(RELEASE_S):
                await self.leadership.quiet()
                await self._release()
        except (StoreError, TimeoutError) as error:
            log.warning("record left to expire", record=self._noun, error=text_of(error))

    # ---- a term

    async def _run_term(self, renewals: Coroutine[None, None, None]) -> None:
        """Await *renewals*, and end the term for the reason with which they end."""
        try:
            await renewals
        except ConflictError as error:
            self.leadership.lose()
            self._log_lost(str(error))
        except (TimeoutError, NotLeadingError):
            self.leadership.step_down()
            self._log_lost(f"the {self._noun} could not be renewed in time")

    async def _keep_renewed(self, decide: Callable[[], None]) -> None:
        """Call *decide* at every change, and renew the record whenever it is due.

        Raises `ConflictError` if another process has changed the record, and `TimeoutError` or
        `NotLeadingError` if the record was not renewed in time.
        """
        while True:
            async with asyncio.timeout(self._own.step_down_at - self._clock()):
                self._changed.clear()
                decide()
                wait_s = self._due_at() - self._clock()
                if wait_s <= 0:
                    await self._renew()
                    continue
                await happens(self._changed, within_s=max(wait_s, PAUSE_S))

    def _due_at(self) -> float:
        """Return the time of the next write."""
        return max(self._retry_at, self._own.renew_at)

    async def _renew(self) -> None:
        """Write the record once. An acknowledgement that comes after `void_at` extends no term."""
        void_at, ttl_s = self._own.void_at, self._own.ttl_s
        if self._clock() >= self._own.step_down_at:
            raise TimeoutError
        try:
            async with asyncio.timeout(RENEW * ttl_s):
                await self._write()
        except ConflictError:
            raise
        except (StoreError, TimeoutError) as error:
            self._log_trouble(error)
            self._retry_at = self._clock() + RETRY * ttl_s
            return
        self._log_recovery()
        if self._clock() >= void_at:
            raise TimeoutError
        if self.leadership.begun.is_set():
            self.leadership.extend(self._own.void_at)

    # ---- the state of the store

    def _log_trouble(self, error: Exception) -> None:
        """Log an error of the store, unless it is the same as before."""
        self._known = False
        if text_of(error) != self._trouble:
            self._trouble = text_of(error)
            log.warning("record out of reach", record=self._noun, error=self._trouble)

    def _log_recovery(self) -> None:
        self._known, self._trouble = True, ""


def text_of(error: Exception) -> str:
    """Return the error's text, or a text for a timeout."""
    return str(error) or "no answer in time"
