"""What a daemon answers about itself, its controllers and their keys: the JSON of its service."""

from collections.abc import Callable, Mapping
from heapq import nsmallest

import msgspec

from natsctl.core.insight.explain import Explanation, Status
from natsctl.core.insight.tree import Branch
from natsctl.core.queue.workqueue import Held, Place, QueueStats, Ready, Waiting
from natsctl.core.sync.journal import SyncRecord
from natsctl.model.garbage import GarbagePlan
from natsctl.telemetry.hiding import shortened

SHOWN_MAX = 100  # keys with something wrong that a status names; it counts all of them
OWNED_MAX = 1_000  # of what was made for a key, as many are named of each kind
BRANCHES_MAX = 5_000
ORPHANS_MAX = 1_000
TEXT_MAX = 500  # characters of what is wrong with a key among others


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon: `id` is its own in the service, `started` is RFC 3339."""

    id: str
    host: str
    pid: int
    version: str
    started: str

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}"


class ControllerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a controller is doing in one daemon.

    Attributes:
        controller: its name.
        daemon: where it runs.
        state: `starting`, `listing`, `standby` where another daemon leads, `joining` where it does
            not share the keys yet, `syncing`, `stopping`; `blocked` while a handler blocks the
            event loop.
        failure: why a cache has no watch just now; empty where all have.
        primaries: how many there are; None where nobody can tell (yet), and so for what follows.
        invalid_count: of them, how many are left alone because they are no valid objects.
        failing_count: how many keys' last sync failed.
        invalid: why, by key, of some of them.
        failing: with what, by key, of some of them.
        contested_count: how many keys have objects that others change back again and again.
        contested: which fields, and who, by key, of some of them.
        syncs: how many there were since the start.
        failures: how many of them failed.
        watch_restarts: how often a watch was begun anew.
        queue: what waits to be synced.
        garbage_held: why garbage collection waits for a person; empty if it does not.
        members: who shares the keys, by this daemon's view; empty where they are not shared.
        keys: how many of the primaries are this daemon's own.
        missing_kinds: optional kinds that the cluster does not have.
        installation: the id of the NATS system, which marks objects in a cluster; empty until it
            is known.
        mode: `alone`, `leader`, `standby`, `shard 2 of 4`, or `shard` while it joins; empty if a
            daemon of version 0.1 answers.
        trouble: why this daemon does not take part in the election, or share keys; empty if nothing
            is wrong.
    """

    controller: str
    daemon: Process
    state: str
    failure: str = ""
    primaries: int | None = None
    invalid_count: int = 0
    failing_count: int = 0
    invalid: dict[str, str] = {}
    failing: dict[str, str] = {}
    contested_count: int = 0
    contested: dict[str, str] = {}
    syncs: int = 0
    failures: int = 0
    watch_restarts: int = 0
    queue: QueueStats | None = None
    members: list[str] = []
    keys: int | None = None
    missing_kinds: list[str] = []
    installation: str = ""
    garbage_held: str = ""
    mode: str = ""
    trouble: str = ""


class Queued(msgspec.Struct, frozen=True):
    """Where a key is in the queue.

    `place` is `waiting`, for `s` seconds more; `ready`, or `held` by a worker, for `s` seconds so
    far. `priority` is that of its visit; empty for one that waits.
    """

    place: str
    s: float
    priority: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was told about a key, `count` times; times are RFC 3339."""

    type: str
    reason: str
    message: str
    first: str
    last: str
    count: int = 1


class KeyExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a daemon knows about why a key is as it is.

    Attributes:
        controller: whose key it is.
        key: which.
        daemon: who tells.
        exists: whether there is a valid object.
        revision: the revision of that.
        invalid: why its newest state is left alone; empty where it is not.
        queued: where it is in the queue; None where it is not in it.
        failures: how often it failed since it last succeeded.
        syncs: its last syncs, the oldest first.
        owned: the keys of what was made for it, by kind.
        owned_more: how many further keys of it there are.
        reads: what else wakes it when it changes.
        contested: objects made for it that others change back again and again.
        events: what the stream of events knows of it, the oldest first.
        events_error: why those could not be read; empty where they could.
        member: who has the key, of those that share the keys; empty where nobody is known to, or
            they are not shared.
        here: whether it is this daemon's own.
        garbage_held: why what it owns stays although it does not exist; empty if it goes.
    """

    controller: str
    key: str
    daemon: Process
    exists: bool
    revision: int | None = None
    invalid: str = ""
    queued: Queued | None = None
    failures: int = 0
    syncs: list[SyncRecord] = []
    owned: dict[str, list[str]] = {}
    owned_more: int = 0
    reads: list[str] = []
    contested: list[str] = []
    events: list[Event] = []
    events_error: str = ""
    member: str = ""
    here: bool = True
    garbage_held: str = ""

    @property
    def present(self) -> bool:
        """Whether the key has an object, owns an object, or is in the queue."""
        return bool(self.exists or self.invalid or any(self.owned.values()) or self.queued)

    @property
    def past(self) -> bool:
        """Whether it was synced, or something was reported about it."""
        return bool(self.syncs or self.events)


class Queuing(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request to sync keys.

    Of the `invalid_count` keys that are left alone, `invalid` says why some are; those `elsewhere`
    are another daemon's own.
    """

    controller: str
    daemon: Process
    queued: int
    unknown: list[str] = []
    elsewhere: list[str] = []
    invalid: dict[str, str] = {}
    invalid_count: int = 0


class ControllerPlan(GarbagePlan, frozen=True, kw_only=True):
    """A plan as it is written down: for which controller."""

    controller: str

    @classmethod
    def of(cls, plan: GarbagePlan, controller: str) -> "ControllerPlan":
        """Return the plan of that controller."""
        return cls(plan.orphans, plan.refused, plan.stores, plan.more, controller=controller)

    def begun(self, count: int) -> "ControllerPlan":
        """Return the plan with its first orphans only; it counts the others."""
        more = self.more + len(self.orphans[count:])
        return msgspec.structs.replace(self, orphans=self.orphans[:count], more=more)


def fitting(limit: int, count: int, answer: Callable[[int], msgspec.Struct]) -> bytes:
    """Return an answer as JSON, with as much of its lists as *limit* bytes can hold.

    *answer* makes it of at most so many entries of each list: first *count*, then fewer.
    """
    encoded = msgspec.json.encode(answer(count))
    while len(encoded) > limit and count:
        count //= 2
        encoded = msgspec.json.encode(answer(count))
    return encoded


def status_of(
    status: Status, daemon: Process, *, state: str, failure: str, shown: int = SHOWN_MAX
) -> ControllerStatus:
    """Return the status as it is told: of long lists, the beginning."""
    return ControllerStatus(
        controller=status.controller,
        daemon=daemon,
        state=state,
        failure=cut(failure),
        primaries=status.primaries,
        invalid_count=len(status.invalid),
        failing_count=len(status.failing),
        invalid=some(status.invalid, shown),
        failing=some(status.failing, shown),
        contested_count=len(status.contested),
        contested=some(status.contested, shown),
        syncs=status.syncs,
        failures=status.failures,
        watch_restarts=status.watch_restarts,
        queue=status.queue,
        keys=status.keys,
        missing_kinds=status.missing_kinds,
    )


def begun(known: KeyExplanation, count: int) -> KeyExplanation:
    """Return the explanation with the first of what was made for the key; it counts the rest."""
    owned = {kind: keys[:count] for kind, keys in known.owned.items()}
    more = sum(len(keys[count:]) for keys in known.owned.values())
    return msgspec.structs.replace(known, owned=owned, owned_more=more)


def pruned(top: Branch, count: int) -> Branch:
    """Return the tree with the first of its branches; it counts the others."""
    more = len(top.branches[count:])
    return msgspec.structs.replace(top, branches=top.branches[:count], more=more)


def explained(
    known: Explanation, controller: str, daemon: Process, *, now: float
) -> KeyExplanation:
    """Return the explanation as it is told: times are from *now*, which is the loop's."""
    return KeyExplanation(
        controller=controller,
        key=known.key,
        daemon=daemon,
        exists=known.exists,
        revision=known.revision,
        invalid=known.invalid,
        queued=None if known.place is None else _queued(known.place, now),
        failures=known.failures,
        syncs=known.syncs,
        owned=known.owned,
        reads=known.reads,
        contested=known.contested,
    )


def _queued(place: Place, now: float) -> Queued:
    match place:
        case Waiting(until):
            return Queued("waiting", round(max(0.0, until - now), 3))
        case Ready(since, priority):
            return Queued("ready", round(now - since, 3), priority.name.lower())
        case Held(since, priority):
            return Queued("held", round(now - since, 3), priority.name.lower())


def some(found: Mapping[str, str], count: int) -> dict[str, str]:
    """Return the first so many keys in order, each with the text, cut if it is long."""
    return {key: cut(found[key]) for key in nsmallest(count, found)}


def cut(text: str) -> str:
    """Return the text, cut in the middle if it is long."""
    return shortened(text, TEXT_MAX)
