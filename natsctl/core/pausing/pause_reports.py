"""Logs and records events about the pauses of a controller and its keys."""

from collections.abc import Callable

import msgspec

from natsctl.core.pausing.quarantine import Deaths
from natsctl.model.pause import Pause
from natsctl.model.recorder import EventType
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

REASON_PAUSED, REASON_RESUMED = "Paused", "Resumed"
REASON_DIED, REASON_QUARANTINED = "ProcessDied", "Quarantined"
WHOLE = "-"
"""The key of events about a whole controller."""

RecordEvent = Callable[[str, EventType, str, str], None]
"""Records an event: the key, the type, the reason and the message."""


class PauseReports(msgspec.Struct, frozen=True, eq=False):
    """Logs and records the pauses of one controller; a `PauseListener`."""

    controller: str
    holds: Callable[[str], bool]  # whether this process syncs a key; only then it reports
    event: RecordEvent

    def paused(self, key: str, pause: Pause) -> None:
        """See `PauseListener.paused`."""
        if self.holds(key):
            log.info("a key is paused", controller=self.controller, key=key, pause=pause)
            self.event(key, EventType.NORMAL, REASON_PAUSED, f"paused {pause}")

    def resumed(self, key: str, pause: Pause, *, pending: bool) -> None:
        """See `PauseListener.resumed`."""
        if self.holds(key):
            log.info("a key is resumed", controller=self.controller, key=key, pending=pending)
            self.event(key, EventType.NORMAL, REASON_RESUMED, f"resumed; it was paused {pause}")

    def died(self, key: str, deaths: Deaths, *, quarantined: bool) -> None:
        """Report that a process died while it synced the key."""
        if not quarantined:
            log.warning(
                "a process died during a sync of the key",
                controller=self.controller,
                key=key,
                deaths=deaths.count,
            )
            self.event(key, EventType.WARNING, REASON_DIED, str(deaths))
            return
        log.error(
            "a key is quarantined: it is not synced until it changes, or `natsctl resync` names it",
            controller=self.controller,
            key=key,
            deaths=deaths.count,
        )
        message = f"{deaths}: not synced until it changes, or natsctl resync names it"
        self.event(key, EventType.WARNING, REASON_QUARANTINED, message)

    def whole_changed(self, before: Pause | None, after: Pause | None) -> None:
        """Report that the whole controller was paused or resumed."""
        if after is not None:
            log.warning("the controller is paused", controller=self.controller, pause=after)
            self.event(WHOLE, EventType.NORMAL, REASON_PAUSED, f"paused {after}")
        else:
            log.info("the controller is resumed", controller=self.controller)
            text = f"resumed; it was paused {before}"
            self.event(WHOLE, EventType.NORMAL, REASON_RESUMED, text)
