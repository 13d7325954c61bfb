"""What a controller tells people: one log line and one event per fact."""

import logging
from collections.abc import Callable, Sequence

from natsctl.core.cache.cache import Invalid
from natsctl.core.objects.read_your_writes import Sync
from natsctl.core.sync.failures import FailureLog
from natsctl.errors import ExistsError
from natsctl.model.garbage import GarbagePlan
from natsctl.model.manifests import Reference
from natsctl.model.recorder import EventType, Recorder

log = logging.getLogger(__name__)

REASON_SYNCED = "Synced"
REASON_EXISTS = "ErrResourceExists"
REASON_FAILED = "SyncFailed"
REASON_INVALID = "InvalidObject"
MESSAGE_CREATED = '"%s" synced successfully (created)'
MESSAGE_UPDATED = '"%s" synced successfully (updated)'
MESSAGE_DELETED = '"%s" synced successfully (deleted)'


class SyncReports:
    """Tells what happens to a controller's keys. `recorders` are where events go.

    *regarding* names what in a cluster was made for a key.
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
        self._failures = FailureLog(log)

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] | None = None,
    ) -> None:
        """Send an event; without a recorder nobody hears it.

        It is about what *regarding* names in a cluster; None means everything made for the key.
        """
        if regarding is None:
            regarding = self._regarding(key)
        for recorder in self._recorders:
            recorder.event(key, type, reason, message, regarding)

    def report(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Log a fact about a key and send it as an event."""
        level = logging.WARNING if type is EventType.WARNING else logging.INFO
        log.log(level, "%s: %s: %s", self.controller, key, message)
        self.event(key, type, reason, message)

    def synced(self, key: str, sync: Sync) -> None:
        """Record what a successful sync wrote; a sync that wrote nothing makes no event."""
        self._failures.succeeded(key)
        if sync.created:
            message = MESSAGE_CREATED
        elif sync.updated:
            message = MESSAGE_UPDATED
        elif sync.deleted:
            message = MESSAGE_DELETED
        else:
            return
        self.event(key, EventType.NORMAL, REASON_SYNCED, message % key, sync.touched)

    def failed(self, key: str, error: Exception) -> None:
        """Log that a sync failed, see `FailureLog`, and record an event."""
        text = self._failures.failed(key, f"{self.controller}: sync of {key}", error)
        reason = REASON_EXISTS if isinstance(error, ExistsError) else REASON_FAILED
        self.event(key, EventType.WARNING, reason, text)

    def invalid(self, invalid: Invalid) -> None:
        """Tell that an object's newest state is left alone."""
        stored = invalid.stored
        message = f"revision {stored.revision} is left alone: {invalid.error}"
        self.event(stored.key, EventType.WARNING, REASON_INVALID, message)

    def refused(self, plan: GarbagePlan) -> None:
        """Tell, once per reason, why orphans are not collected."""
        if plan.refused and plan.refused != self._refused:
            if plan.orphans:
                log.error(
                    "%s: %d orphans are left where they are: %s. `natsctl gc plan` lists them, "
                    "`natsctl gc accept` accepts the bucket as it is, `natsctl gc apply` removes "
                    "them",
                    self.controller,
                    len(plan.orphans),
                    plan.refused,
                )
            else:
                log.warning("%s: no garbage is collected: %s", self.controller, plan.refused)
        self._refused = plan.refused
        unmarked = sum(bool(orphan.held) for orphan in plan.orphans)
        if unmarked > self._unmarked:
            log.warning(
                "%s: %d orphans carry no installation and are kept: `natsctl gc plan` lists them, "
                "`natsctl gc accept` makes them this installation's",
                self.controller,
                unmarked,
            )
        self._unmarked = unmarked
