"""Limits and reports the external calls and the writes of one reconciliation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from natsctl.errors import ConflictError, NotFoundError, RetryAfter, StoreError
from natsctl.managed.conditions import MESSAGE_MAX, Condition
from natsctl.managed.external import ExternalClient, NopClient
from natsctl.managed.objects import Managed
from natsctl.managed.reports import CANNOT_UPDATE, Reports
from natsctl.telemetry.hiding import error_text

T = TypeVar("T")

AGAIN_S = 0.1  # until an object that was changed meanwhile, or by us, is looked at again


class Reconciliation(Generic[T]):
    """One reconciliation of one object: until when external calls may take, and by which client."""

    def __init__(self, managed: Managed[T], timeout_s: float) -> None:
        self.managed = managed
        self.timeout_s = timeout_s
        self.deadline = asyncio.get_running_loop().time() + timeout_s
        self.client: ExternalClient[T] = NopClient()
        self.rejected = ""  # why its policies make no sense
        self.confirmed = False  # its external resource was observed right after its creation


class ExternalCalls(Generic[T]):
    """Wraps external calls and writes; *reports* takes their failures."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    @asynccontextmanager
    async def calling(
        self, reconciliation: Reconciliation[T], verb: str, reason: str
    ) -> AsyncIterator[None]:
        """Limit the call inside to the time that is left; its failure is reported and passes."""
        async with self.reported(reconciliation, verb, reason), self.limited(reconciliation, verb):
            yield

    @asynccontextmanager
    async def reported(
        self, reconciliation: Reconciliation[T], verb: str, reason: str, *conditions: Condition
    ) -> AsyncIterator[None]:
        """Report a failure of the block; it passes."""
        try:
            yield
        except RetryAfter:
            raise
        except Exception as error:
            message = f"cannot {verb}: {error_text(error)}"[:MESSAGE_MAX]
            await self._reports.failed(reconciliation.managed, reason, message, *conditions)
            raise

    @asynccontextmanager
    async def storing(
        self, managed: Managed[T], what: str, *conditions: Condition
    ) -> AsyncIterator[None]:
        """Report that *what* cannot be stored.

        If somebody wrote the object since it was read, ask to come back to it instead.
        """
        try:
            yield
        except (ConflictError, NotFoundError) as error:
            text = f"{managed.key} was written meanwhile, and is looked at again"
            raise RetryAfter(AGAIN_S, text) from error
        except StoreError as error:
            message = f"cannot store {what}: {error_text(error)}"[:MESSAGE_MAX]
            await self._reports.failed(managed, CANNOT_UPDATE, message, *conditions)
            raise

    @asynccontextmanager
    async def limited(self, reconciliation: Reconciliation[T], verb: str) -> AsyncIterator[None]:
        """Limit the call inside to the time that is left."""
        try:
            async with asyncio.timeout_at(reconciliation.deadline) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            limit_s = reconciliation.timeout_s
            message = f"{verb} was cut short: external calls took longer than {limit_s:g} s"
            raise TimeoutError(message) from error
