"""Logs and records events about invalid objects and orphans."""

import logging

import msgspec

from natsctl.core.history import SyncHistory
from natsctl.core.table import Invalid
from natsctl.model.garbage import GarbagePlan
from natsctl.model.recorder import EventType
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

REASON_INVALID = "InvalidObject"


class SyncReports(msgspec.Struct, eq=False):
    """Logs and records events about the keys of one controller, beside those of its syncs."""

    history: SyncHistory
    _refused: str = ""  # the reason that was logged last

    def report(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Log a message about a key and record it as an event."""
        level = logging.WARNING if type is EventType.WARNING else logging.INFO
        log.log(
            level,
            "recording an event",
            controller=self.history.controller,
            key=key,
            reason=reason,
            note=message,
        )
        self.history.event(key, type, reason, message)

    def invalid(self, invalid: Invalid) -> None:
        """Record an event about an object that is skipped because it is invalid."""
        stored = invalid.stored
        message = f"revision {stored.revision} is invalid and skipped: {invalid.error}"
        self.history.event(stored.key, EventType.WARNING, REASON_INVALID, message)

    def refused(self, plan: GarbagePlan) -> None:
        """Log why orphans are not collected, once per reason."""
        if plan.refused and plan.refused != self._refused:
            self._log_refused(plan)
        self._refused = plan.refused

    def _log_refused(self, plan: GarbagePlan) -> None:
        if not plan.orphans:
            log.warning(
                "collecting no garbage", controller=self.history.controller, reason=plan.refused
            )
            return
        log.error(
            "keeping orphans: `natsctl gc plan` lists them, `natsctl repair gc` accepts the bucket "
            "as it is, `natsctl gc apply` removes them",
            controller=self.history.controller,
            orphans=len(plan.orphans),
            reason=plan.refused,
        )
