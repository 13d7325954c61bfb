"""Why a key is as it is, and how a controller is doing: read from memory, for people."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import msgspec

from natsctl.core.cache.cache import Cache
from natsctl.core.cache.informer import Informer
from natsctl.core.insight.tree import Beyond, Branch
from natsctl.core.queue.workqueue import Place, QueueStats, Workqueue
from natsctl.core.sync.journal import Journal, SyncRecord
from natsctl.errors import StoreError
from natsctl.telemetry.hiding import hidden


class Explanation(msgspec.Struct, frozen=True):
    """Everything known about why a key is as it is.

    `place` is where it is in the queue, `invalid` why its newest state is left alone, `owned` the
    keys of what was made for it, by kind; `reads` is what else wakes it. `contested` says which
    of its objects others change back again and again.
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
    contested: list[str] = []


class Status(msgspec.Struct, frozen=True):
    """How a controller is doing: `invalid`, `failing` and `contested` say why, by key.

    `keys` are those of the primaries that are this process's own; `missing_kinds` are the optional
    kinds that the cluster does not have.
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
    missing_kinds: list[str] = []
    contested: dict[str, str] = {}


@runtime_checkable
class Accountable(Protocol):
    """What says why its keys are as they are; a `ControllerRuntime` is one.

    `prepared` says that there is something to explain, `stopping` that nothing more is begun.
    """

    prepared: bool
    stopping: bool

    @property
    def failure(self) -> StoreError | None:
        """Why a cache has no watch just now, None where all have."""
        ...

    def status(self) -> Status:
        """Return how it is doing as a whole."""
        ...

    def explain(self, key: str) -> Explanation:
        """Return what is known of a key."""
        ...

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """Return the object with all that was made for it."""
        ...

    def holds(self, key: str) -> bool:
        """Say whether the key is this process's own now, and not another's."""
        ...

    def resync(self, *keys: str) -> int:
        """Visit these keys as soon as may be; all of them, at leisure, where none is named.

        Those that are another process's own are left to it. Returns how many are visited.
        """
        ...


def known(key: str, cache: Cache[Any], queue: Workqueue[str], journal: Journal) -> Explanation:
    """Return what is known of a key that owns and reads nothing."""
    stored, invalid = cache.get(key), cache.invalid.get(key)
    return Explanation(
        key=key,
        exists=key in cache,
        revision=None if stored is None else stored.revision,
        invalid="" if invalid is None else hidden(str(invalid.error)),
        place=queue.place(key),
        failures=queue.failures(key),
        syncs=journal.of(key),
        owned={},
        reads=[],
    )


def status(
    controller: str,
    primaries: Sequence[Informer[Any]],
    informers: Sequence[Informer[Any]],
    queue: QueueStats,
    journal: Journal,
    *,
    synced: bool,
    has: Callable[[str], bool],
    contested: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Status:
    """Return how the controller is doing as a whole; *has* says which keys are our own."""
    caches = [informer.cache for informer in primaries]
    return Status(
        controller=controller,
        synced=synced,
        primaries=sum(map(len, caches)),
        keys=sum(has(key) for cache in caches for key in cache.keys()),  # noqa: SIM118 - a cache is no dict
        invalid={
            key: hidden(str(at.error)) for cache in caches for key, at in cache.invalid.items()
        },
        failing={key: at.error for key, at in journal.failing().items() if has(key)},
        syncs=journal.syncs,
        failures=journal.failures,
        watch_restarts=sum(informer.restarts for informer in informers),
        queue=queue,
        missing_kinds=[informer.cache.kind.name for informer in informers if informer.absent],
        contested={key: hidden("; ".join(texts)) for key, texts in contested.items()},
    )
