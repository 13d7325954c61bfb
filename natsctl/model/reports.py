"""The answers about controllers and keys, as processes send them and people read them."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from natsctl.model.pause import Pause
from natsctl.model.readiness import UNKNOWN
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.histogram import Distribution

LANE_MAX = 20
"""Keys in each lane."""
RECORDS_MAX = 5  # per key
MISSING = "Missing"
INVALID = "Invalid"


class QueueStats(msgspec.Struct, frozen=True):
    """The measures of a queue since its creation. Durations are seconds of loop time.

    They correspond to the metrics of client-go's work queue. `depth` counts the keys that are due:
    the ready ones, and the claimed ones that were offered again. `waiting` counts the keys whose
    time is in the future, `held` those that workers have. `adds` counts how often a key that was
    not due became due, `retries` how often a key was offered with a delay. `latency_s` runs from
    the offer to the take, `work_s` from there to the settlement. `unfinished_s` is the sum of the
    times for which the claimed keys have been claimed so far, and `longest_s` the longest of them:
    both grow if a worker hangs.
    """

    depth: int
    waiting: int
    held: int
    adds: int
    retries: int
    latency_s: Distribution
    work_s: Distribution
    unfinished_s: float
    longest_s: float


class QueuedKey(msgspec.Struct, frozen=True):
    """A key in a work queue.

    `s` is for how many seconds it has been held or ready, or until it becomes ready. `reason` is
    `retry` after a failure, `delay` for a key that waits for another reason, else `change` of the
    primary or a request, `secondary` for a changed secondary, or `resync`.
    """

    key: str
    s: float
    reason: str


class Lanes(msgspec.Struct, frozen=True):
    """Up to `LANE_MAX` keys of each place in the work queues."""

    held: list[QueuedKey] = []  # the longest first
    ready: list[QueuedKey] = []  # the longest first
    waiting: list[QueuedKey] = []  # the next one first

    def limited(self, count: int) -> "Lanes":
        return Lanes(self.held[:count], self.ready[:count], self.waiting[:count])


class SyncRecord(msgspec.Struct, frozen=True, gc=False):
    """One sync of a key, and how many secondaries it created, updated and deleted."""

    operation: str  # the reason for the sync
    started: datetime
    duration_s: float
    revision: int | None  # of the object; None if it didn't exist
    error: str  # empty if the sync succeeded or asked for a delay
    created: int
    updated: int
    deleted: int


class Queued(msgspec.Struct, frozen=True):
    """The place of a key in the work queue: `waiting`, `ready` or `held`.

    `s` is in how many seconds a waiting key becomes ready, or for how many it's been ready or held.
    """

    place: str
    s: float
    priority: str = ""  # empty for a waiting key


class KeyPause(Pause, frozen=True, kw_only=True):
    """The pause of a key, or of its whole *controller*."""

    controller: bool = False
    pending: bool = False  # a sync was held back, and follows when the key is resumed


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one key of a controller, and the reasons for that state.

    Attributes:
        source: the bucket of its object, or its kind in a cluster; empty if unknown.
        exists: whether the object exists, valid or not, as cached.
        revision: the revision of its last valid state, if it has one.
        invalid: why the newest revision is invalid; empty if it's valid.
        quarantined: why the key is quarantined; empty if it isn't.
        failures: failed syncs since the last successful one.
        failing_since: the time of the first of them, also in an earlier process.
        external: the names of its external resources; an adopted one is named as such.
        conditions: the conditions of its status, such as `Ready=False NotOwned: …`.
        syncs: the last syncs, oldest first.
        owned: the keys of objects that the key owns, by kind.
        held: owned objects that are being deleted, and their finalizers.
        reads: objects and selections whose changes enqueue the key as well.
        contested: owned objects that another writer keeps changing back.
        garbage_held: why objects of a deleted key aren't collected; empty if they are.
    """

    controller: str
    key: str
    source: str = ""
    exists: bool
    revision: int | None = None
    invalid: str = ""
    paused: KeyPause | None = None
    quarantined: str = ""
    queued: Queued | None = None
    failures: int = 0
    failing_since: datetime | None = None
    external: list[str] = []
    conditions: list[str] = []
    syncs: list[SyncRecord] = []
    owned: dict[str, list[str]] = {}
    held: list[str] = []
    reads: list[str] = []
    contested: list[str] = []
    garbage_held: str = ""

    @property
    def present(self) -> bool:
        """True if the key has an object, owns an object, or is in the queue."""
        paused = self.paused is not None and not self.paused.controller
        return bool(
            self.exists or self.invalid or any(self.owned.values()) or self.queued or paused
        )

    def held_back(self, reason: str) -> "Explanation":
        """Return the explanation with the *reason* why garbage collection is held.

        The explanation does not change if the object exists or owns nothing.
        """
        if self.exists or not any(self.owned.values()):
            return self
        return msgspec.structs.replace(self, garbage_held=hidden(reason))


class PrimarySource(msgspec.Struct, frozen=True):
    """Where primaries are: the bucket, empty for a cluster, and the pattern of their keys.

    `kind` is the name of their kind; empty if an older daemon answers.
    """

    bucket: str
    keys: str = ">"
    kind: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a controller. What depends on its tables is empty or None until they exist.

    Attributes:
        state: `starting`, `listing` until every table is synced, then `syncing`.
        failure: why a table has no watch at the moment; empty if every table has one.
        keys: the number of primaries that this process syncs.
        invalid: the reason, by key, for each primary whose newest revision is invalid.
        failing: the error, by key, of each key whose last sync failed.
        failing_since: the time of the first of its failures in a row, by failing key; also if that
            was in an earlier process.
        paused: the pause, by key, of each paused key; without the pause of the controller.
        quarantined: the reason, by key, for each quarantined key.
        contested: the fields and the other writers, by key, of objects that are changed back again
            and again.
        syncs: the number of syncs since the start; `failures` that of failed ones.
        watch_restarts: how often a watch was established again.
        unanswered: changes that wait for a successful sync, without those of keys that are held;
            None if it is not known.
        oldest_unanswered_s: seconds since the first of them, or since the first failure of a key
            that still fails; None if there are none.
        oldest_failure_s: seconds since the first failure of a key that still fails; None if none.
        overdue: the number of keys whose change has waited for more than five minutes, and that
            neither fail nor are paused.
        unhealthy: the number of keys that fail, are invalid, quarantined or overdue.
        concerns: what buckets delete too early or keep too long, with advice.
        missing_kinds: the optional kinds that the cluster does not have.
        installation: the id of the NATS system, which labels objects in a cluster.
        garbage_held: why garbage collection waits for an operator; empty if it does not wait.
    """

    controller: str
    sources: list[PrimarySource] = []
    state: str = "starting"
    failure: str = ""
    primaries: int | None = None
    keys: int | None = None
    invalid: dict[str, str] = {}
    failing: dict[str, str] = {}
    failing_since: dict[str, datetime] = {}
    paused: dict[str, str] = {}
    paused_controller: Pause | None = None
    quarantined: dict[str, str] = {}
    contested: dict[str, str] = {}
    syncs: int = 0
    failures: int = 0
    watch_restarts: int = 0
    queue: QueueStats | None = None
    lanes: Lanes | None = None
    unanswered: int | None = None
    oldest_unanswered_s: float | None = None
    oldest_failure_s: float | None = None
    overdue: int = 0
    unhealthy: int = 0
    concerns: list[str] = []
    missing_kinds: list[str] = []
    installation: str = ""
    garbage_held: str = ""

    @property
    def synced(self) -> bool:
        return self.state == "syncing"


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One object, and the objects that it owns."""

    kind: str  # its kind, as owner labels name it
    key: str  # its name within its kind
    bucket: str = ""  # the bucket in NATS that stores it; empty for other objects
    ready: str = UNKNOWN  # as `ready` returns it, or `Missing` or `Invalid` for a primary
    reason: str = ""  # the reason for `ready`; empty if it is not known
    revision: int | None = None  # the revision of the state; None if there is none
    created: str = ""  # its creation time (RFC 3339); empty if it is not known
    branches: tuple["Branch", ...] = ()  # the objects that it owns
    more: int = 0  # the number of further objects, which `branches` lacks

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.key}"

    def limited(self, count: int) -> "Branch":
        """Return the tree with its first *count* branches; `more` counts the others."""
        unlisted = self.more + len(self.branches[count:])
        return msgspec.structs.replace(self, branches=self.branches[:count], more=unlisted)


def merged(trees: Sequence[Branch]) -> Branch:
    """Return one tree of what several members know, each of which has the values of its own keys.

    Of each object the tree has the branch that knows the most.
    """
    known: dict[tuple[str, str], Branch] = {}
    for tree_ in trees:
        for branch in tree_.branches:
            name = (branch.kind, branch.key)
            known[name] = max(known.get(name, branch), branch, key=_knowledge)
    top = max(trees, key=_knowledge)
    more = max(tree_.more for tree_ in trees)
    return msgspec.structs.replace(top, branches=tuple(known.values()), more=more)


def _knowledge(branch: Branch) -> tuple[bool, bool, int]:
    known = branch.ready not in (UNKNOWN, MISSING)
    return known, branch.revision is not None, len(branch.branches)
