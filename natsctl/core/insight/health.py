"""Which keys of a controller need somebody: one count for metrics, commands and pages."""

import time
from collections.abc import Callable, Mapping

import msgspec

from natsctl.core.pausing.failing_records import LastingFailure
from natsctl.core.sync.counters import Counts
from natsctl.core.sync.host import Host
from natsctl.telemetry.hiding import hidden


class Health(msgspec.Struct, frozen=True):
    """The keys of this process that are not as they should be.

    Attributes:
        failing: since when each failing key fails, also before this process, and its last error.
        invalid: why the newest state of each invalid primary is invalid.
        quarantined: why each quarantined key is not synced.
        overdue: keys whose change has waited for more than `OVERDUE_S`, and that do not fail.
    """

    failing: Mapping[str, LastingFailure]
    invalid: Mapping[str, str]
    quarantined: Mapping[str, str]
    overdue: frozenset[str]

    @property
    def unhealthy(self) -> int:
        """The number of keys that need somebody; a key with two troubles counts once."""
        return len(self.overdue.union(self.failing, self.invalid, self.quarantined))

    @property
    def oldest_failure_s(self) -> float | None:
        """Seconds since the first failure of the key that has failed the longest."""
        first = min((failure.since_s for failure in self.failing.values()), default=None)
        return None if first is None else max(0.0, time.time() - first)


def health_of(
    host: Host,
    has: Callable[[str], bool],
    syncs: Counts | None = None,
    errors: Mapping[str, str] | None = None,
) -> Health:
    """Return the health of the keys that this process *has*, which other members do not report.

    A controller that knows better than its journal which keys fail names their *errors*.
    """
    failing = host.journal.known_failures(has)
    if errors is not None:
        now = time.time()
        failing = {
            key: LastingFailure(failing[key].since_s if key in failing else now, error)
            for key, error in errors.items()
        }
    late = () if syncs is None else syncs.late
    return Health(
        failing=failing,
        invalid={key: error for key, error in invalid_of(host).items() if has(key)},
        quarantined={
            key: str(deaths) for key, deaths in host.pausing.quarantined().items() if has(key)
        },
        overdue=frozenset(
            key for key in late if key not in failing and host.pausing.of(key) is None
        ),
    )


def invalid_of(host: Host) -> dict[str, str]:
    """Return why the newest state of each invalid primary is invalid, by key."""
    return {
        key: hidden(str(invalid.error))
        for informer in host.primaries
        for key, invalid in informer.cache.invalid.items()
    }
