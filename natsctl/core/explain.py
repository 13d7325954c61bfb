"""Why a key is as it is, and how a controller is doing: read from memory, for people."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from natsctl.core.informer import Informer
from natsctl.core.journal import Journal, SyncRecord
from natsctl.core.opening import Opened
from natsctl.core.owned import Owned
from natsctl.core.slots import Primary
from natsctl.core.workqueue import Place, QueueStats, Workqueue


class Explanation(msgspec.Struct, frozen=True):
    """Everything known about why a key is as it is.

    `place` is where it is in the queue, `invalid` why its newest state is left alone, `owned` the
    keys of what was made for it, by kind; `reads` is what else wakes it.
    """

    key: str
    exists: bool
    revision: int | None
    invalid: str
    place: Place | None
    failures: int
    syncs: list[SyncRecord]
    owned: dict[str, list[str]]
    reads: list[str]


class Status(msgspec.Struct, frozen=True):
    """How a controller is doing: `invalid` and `failing` say why, by key.

    `keys` are those of the primaries that are this process's own.
    """

    controller: str
    synced: bool
    primaries: int
    keys: int
    invalid: dict[str, str]
    failing: dict[str, str]
    syncs: int
    failures: int
    watch_restarts: int
    queue: QueueStats


def explain(key: str, at: Opened, queue: Workqueue[str], journal: Journal) -> Explanation:
    """Return what is known of a key."""
    primary = at.primary
    stored = primary.informer.cache.get(key)
    invalid = primary.error(key)
    return Explanation(
        key=key,
        exists=key in primary.informer.cache,
        revision=None if stored is None else stored.revision,
        invalid="" if invalid is None else str(invalid),
        place=queue.place(key),
        failures=queue.failures(key),
        syncs=journal.of(key),
        owned=_owned(key, at.secondaries),
        reads=list(at.reads.depends_on(key)),
    )


def _owned(key: str, secondaries: Sequence[Owned[Any]]) -> dict[str, list[str]]:
    """Return what was made for the key, by kind: slots may share one."""
    found: dict[str, list[str]] = {secondary.kind.name: [] for secondary in secondaries}
    for secondary in secondaries:
        found[secondary.kind.name] += [stored.key for stored in secondary.owned_stored(key)]
    return found


def status(
    controller: str,
    primary: Primary[Any],
    informers: Sequence[Informer[Any]],
    queue: Workqueue[str],
    journal: Journal,
    *,
    synced: bool,
    has: Callable[[str], bool],
) -> Status:
    """Return how the controller is doing as a whole; *has* says which keys are our own."""
    cache = primary.informer.cache
    return Status(
        controller=controller,
        synced=synced,
        primaries=len(cache),
        keys=sum(map(has, cache.keys())),
        invalid={key: str(found.error) for key, found in cache.invalid.items()},
        failing={key: at.error for key, at in journal.failing().items() if has(key)},
        syncs=journal.syncs,
        failures=journal.failures,
        watch_restarts=sum(informer.restarts for informer in informers),
        queue=queue.stats(),
    )
