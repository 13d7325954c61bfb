"""Logs and records events about the keys of a controller."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from natsctl.core.cache.state import Invalid
from natsctl.core.objects.read_your_writes import Sync
from natsctl.core.sync.failures import HandlerFailures
from natsctl.errors import ExistsError, NatsctlError
from natsctl.model.garbage import UNMARKED, GarbagePlan
from natsctl.model.manifests import Reference
from natsctl.model.recorder import EventType, Recorder, RemembersSyncs, SyncNote
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

REASON_SYNCED = "Synced"
REASON_EXISTS = "ErrResourceExists"
REASON_FAILED = "SyncFailed"
REASON_INVALID = "InvalidObject"
MESSAGE_CREATED = '"%s" synced successfully (created)'
MESSAGE_UPDATED = '"%s" synced successfully (updated)'
MESSAGE_DELETED = '"%s" synced successfully (deleted)'
MESSAGE_RECOVERED = '"%s" synced successfully (after failures)'

PAST_S = 1.0  # how long a failed sync may wait for the events of earlier processes


class SyncReports:
    """Logs and records events about the keys of one controller.

    Args:
        controller: the name of the controller.
        regarding: returns references to the objects in a cluster that a key owns.
        recorders: the recorders of the events.
    """

    def __init__(
        self,
        controller: str,
        regarding: Callable[[str], Sequence[Reference]],
        recorders: Sequence[Recorder],
    ) -> None:
        self.controller = controller
        self._recorders = recorders
        self._regarding = regarding
        self._refused = ""
        self._unmarked = 0
        self._failures = HandlerFailures(log)

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] | None = None,
        *,
        sync: SyncNote | None = None,
    ) -> None:
        """Record an event about the key and the objects *regarding*, by default all that it owns.

        Without a recorder the event is dropped.
        """
        if regarding is None:
            regarding = self._regarding(key)
        for recorder in self._recorders:
            recorder.event(key, type, reason, message, regarding, sync=sync)

    def report(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Log a message about a key and record it as an event."""
        level = logging.WARNING if type is EventType.WARNING else logging.INFO
        log.log(
            level,
            "recording an event",
            controller=self.controller,
            key=key,
            reason=reason,
            note=message,
        )
        self.event(key, type, reason, message)

    async def past_failures(self, key: str) -> int:
        """Return the failures in a row that earlier processes recorded, 0 if none is known."""
        for recorder in self._recorders:
            if isinstance(recorder, RemembersSyncs):
                with suppress(NatsctlError, TimeoutError):
                    async with asyncio.timeout(PAST_S):
                        return await recorder.past_failures(key)
        return 0

    def synced(self, key: str, sync: Sync, note: Callable[[], SyncNote], *, failed: bool) -> None:
        """Record an event if a successful sync wrote anything, or if the one before *failed*."""
        self._failures.succeeded(key)
        if sync.created:
            message = MESSAGE_CREATED
        elif sync.updated:
            message = MESSAGE_UPDATED
        elif sync.deleted:
            message = MESSAGE_DELETED
        elif failed:
            message = MESSAGE_RECOVERED
        else:
            return
        text = message % key
        self.event(key, EventType.NORMAL, REASON_SYNCED, text, sync.touched, sync=note())

    def failed(self, key: str, error: Exception, note: SyncNote) -> None:
        """Log the failure of a sync, see `HandlerFailures`, and record an event."""
        text = self._failures.failed(key, "sync failed", error, controller=self.controller, key=key)
        reason = REASON_EXISTS if isinstance(error, ExistsError) else REASON_FAILED
        self.event(key, EventType.WARNING, reason, text, sync=note)

    def invalid(self, invalid: Invalid) -> None:
        """Record an event about an object that is skipped because it is invalid."""
        stored = invalid.stored
        message = f"revision {stored.revision} is invalid and skipped: {invalid.error}"
        self.event(stored.key, EventType.WARNING, REASON_INVALID, message)

    def refused(self, plan: GarbagePlan) -> None:
        """Log why orphans are not collected, once per reason."""
        if plan.refused and plan.refused != self._refused:
            self._log_refused(plan)
        self._refused = plan.refused
        unmarked = sum(orphan.held == UNMARKED for orphan in plan.orphans)
        if unmarked > self._unmarked:
            log.warning(
                "keeping orphans that carry no installation: `natsctl gc plan` lists them, "
                "`natsctl gc accept` assigns them to this installation",
                controller=self.controller,
                orphans=unmarked,
            )
        self._unmarked = unmarked

    def _log_refused(self, plan: GarbagePlan) -> None:
        if not plan.orphans:
            log.warning("collecting no garbage", controller=self.controller, reason=plan.refused)
            return
        log.error(
            "keeping orphans: `natsctl gc plan` lists them, `natsctl gc accept` accepts the bucket "
            "as it is, `natsctl gc apply` removes them",
            controller=self.controller,
            orphans=len(plan.orphans),
            reason=plan.refused,
        )
