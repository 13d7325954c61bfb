"""Limits and reports the external calls and the writes of one reconciliation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import msgspec

from natsctl.errors import ConflictError, NotFoundError, RetryAfter, StoreError, UsageError
from natsctl.managed.conditions import MESSAGE_MAX, Condition
from natsctl.managed.external import ExternalClient, NopClient
from natsctl.managed.objects import Managed
from natsctl.managed.reports import CANNOT_UPDATE, Reports
from natsctl.telemetry.hiding import error_text

T = TypeVar("T")

AGAIN_S = 0.1  # until the next reconciliation of an object that was just written


class Reconciliation(Generic[T]):
    """One reconciliation of one object: its client, and the deadline of its external calls."""

    def __init__(self, managed: Managed[T], timeout_s: float) -> None:
        self.managed = managed
        self.timeout_s = timeout_s
        self.deadline = asyncio.get_running_loop().time() + timeout_s
        self.client: ExternalClient[T] = NopClient()
        self.rejected = ""  # the error in the object's policies
        self.diff = ""  # what differs, if the external resource is not up to date


class ExternalCalls(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """Limits external calls and writes, and reports their failures."""

    reports: Reports

    @asynccontextmanager
    async def calling(
        self, reconciliation: Reconciliation[T], verb: str, reason: str
    ) -> AsyncIterator[None]:
        """Limit the call inside to the remaining time; reports and raises its errors."""
        async with self.reported(reconciliation, verb, reason), self.limited(reconciliation, verb):
            yield

    @asynccontextmanager
    async def reported(
        self, reconciliation: Reconciliation[T], verb: str, reason: str, *conditions: Condition
    ) -> AsyncIterator[None]:
        """Report and raise errors of the block, except `RetryAfter`."""
        try:
            yield
        except RetryAfter:
            raise
        except Exception as error:
            differs = (
                f" ({reconciliation.diff})" if verb == "update" and reconciliation.diff else ""
            )
            message = f"cannot {verb}: {error_text(error)}{differs}"[:MESSAGE_MAX]
            await self.reports.failed(reconciliation.managed, reason, message, *conditions)
            raise

    @asynccontextmanager
    async def storing(
        self, managed: Managed[T], change: str, *conditions: Condition
    ) -> AsyncIterator[None]:
        """Report and raise a failure to store *change*.

        Raises `RetryAfter` instead if the object has changed since it was read.
        """
        try:
            yield
        except (ConflictError, NotFoundError) as error:
            text = f"{managed.key} has changed since it was read and is reconciled again"
            raise RetryAfter(AGAIN_S, text) from error
        except (StoreError, UsageError) as error:
            message = f"cannot store {change}: {error_text(error)}"[:MESSAGE_MAX]
            await self.reports.failed(managed, CANNOT_UPDATE, message, *conditions)
            raise

    @asynccontextmanager
    async def limited(self, reconciliation: Reconciliation[T], verb: str) -> AsyncIterator[None]:
        """Limit the call inside to the remaining time."""
        try:
            async with asyncio.timeout_at(reconciliation.deadline) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            limit_s = reconciliation.timeout_s
            message = f"{verb} was cut short: external calls took longer than {limit_s:g} s"
            raise TimeoutError(message) from error
