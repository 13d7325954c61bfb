"""The verbs that a daemon answers over NATS, and the JSON messages of its answers."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from heapq import nsmallest
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from natsctl.jetstream.events import KvEvent
from natsctl.model.plans import GarbagePlan, KeyPlan, Plan
from natsctl.model.reports import RECORDS_MAX, Explanation, Status, SyncRecord
from natsctl.telemetry.hiding import enumerated, shortened

NAME = "natsctl"
API = "natsctl.api"
STOP = "-"  # the first word of a request that ends the recording of keys
SHOWN_MAX = 100  # keys that a status names of each list; it counts all of them
OWNED_MAX = 1_000  # owned objects that an explanation names of each kind
ORPHANS_MAX = 1_000
TEXT_MAX = 500  # characters of the reason for one key among many
DAEMONS_SHOWN = 5
ADVICE = "run all its daemons with --leader-elect, or all with --shard"
ONE_NAME = "set another `name` on one of them"
ONE_CLUSTER = "give all its daemons the same kubeconfig, or the controllers different names"


class Verb(StrEnum):
    """A request to a daemon about one of its controllers.

    Every daemon that runs a controller answers the verbs that read. The leader answers the verbs
    that act. If the controller is sharded, each daemon answers them for its own keys.
    """

    STATUS = "status"
    EXPLAIN = "explain"
    TREE = "tree"
    MANIFEST = "manifest"
    PLAN = "plan"
    RESYNC = "resync"
    RECORD = "record"
    RECORDING = "recording"
    RECORDING_UNMASKED = "recording.unmasked"
    GC_PLAN = "gc.plan"
    GC_APPLY = "gc.apply"
    GC_ACCEPT = "gc.accept"

    def subject(self, controller: str) -> str:
        return f"{API}.{self}.{controller}"

    @property
    def acts(self) -> bool:
        """True if only a daemon that works for the controller answers."""
        return self is Verb.RESYNC or self.collects

    @property
    def collects(self) -> bool:
        return self.startswith("gc.")

    def group(self, *, shared: bool) -> str:
        """Return the queue group; empty if every daemon has to answer.

        If the controller is *shared* among daemons, each acts for its own keys, and has only
        their values.
        """
        one_answers = self in {Verb.PLAN, Verb.GC_PLAN} or (
            self in {Verb.TREE, Verb.GC_APPLY, Verb.GC_ACCEPT} and not shared
        )
        return NAME if one_answers else ""


class Mode(StrEnum):
    """The mode in which a daemon runs its controllers."""

    ALONE = "alone"
    ELECTED = "leader-elect"
    SHARED = "shard"
    DRY_RUN = "dry-run"
    UNKNOWN = ""


_MODES = {"leader": Mode.ELECTED.value, "standby": Mode.ELECTED.value}


class DaemonProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon. `id` is its id in the NATS service, `started` is RFC 3339.

    No daemon has an empty id, and 0 as its process id.
    """

    id: str
    host: str
    pid: int
    version: str
    started: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}" if self.pid else "-"


class ControllerStatus(Status, frozen=True, kw_only=True):
    """The status of a controller in one daemon.

    A daemon reports further states: `standby` while another daemon leads, `joining` while it has no
    keys of a sharded controller yet, and `stopping`. Commands add `down` for a controller that no
    daemon runs, and `no answer`. The lists of keys may be cut; their counts aren't.

    Attributes:
        members: the daemons that share the keys; empty if the controller isn't sharded.
        mode: `alone`, `leader`, `standby`, `shard 2 of 4, 64 shares` with how many it gives up and
            since when, `shard` while it joins, or `dry-run`; empty if the daemon has version 0.1.
        draining: how many of its shares it gives up when their syncs have ended, since
            `draining_s` seconds.
        owner: the kind of its primaries, which tells two controllers of one name apart.
        cluster: the identity of the controller's Kubernetes cluster; empty without one, or if it
            isn't known.
        trouble: why the daemon doesn't take part in the election or in the sharding.
    """

    daemon: DaemonProcess
    invalid_count: int = 0
    failing_count: int = 0
    paused_count: int = 0
    quarantined_count: int = 0
    contested_count: int = 0
    members: list[str] = msgspec.field(default_factory=list)
    mode: str = ""
    shares: int = 0
    draining: int = 0
    draining_s: float = 0.0
    owner: str = ""
    cluster: str = ""
    trouble: str = ""

    @classmethod
    def of(cls, status: Status, daemon: DaemonProcess) -> "ControllerStatus":
        lists = ("invalid", "failing", "paused", "quarantined", "contested")
        counts: dict[str, Any] = {f"{name}_count": len(getattr(status, name)) for name in lists}
        return cls(**asdict(status), daemon=daemon, **counts)

    def limited(self, count: int = SHOWN_MAX) -> "ControllerStatus":
        failing, since = first_keys(self.failing, count), self.failing_since
        return replace(
            self,
            failure=cut(self.failure),
            garbage_held=cut(self.garbage_held),
            concerns=[cut(text) for text in self.concerns[:count]],
            invalid=first_keys(self.invalid, count),
            failing=failing,
            failing_since={key: since[key] for key in failing if key in since},
            paused=first_keys(self.paused, count),
            quarantined=first_keys(self.quarantined, count),
            contested=first_keys(self.contested, count),
            lanes=None if self.lanes is None else self.lanes.limited(count),
        )


def conflict(statuses: Iterable[ControllerStatus]) -> str:
    """Return why daemons of one controller sync keys more than once, or in different clusters."""
    working = [one for one in statuses if one.mode not in {Mode.UNKNOWN, Mode.DRY_RUN}]
    modes = [_MODES.get(word := one.mode.partition(" ")[0], word) for one in working]
    alone, different = modes.count(Mode.ALONE), len(set(modes)) > 1
    is_twice = alone > 1 or different
    owners, clusters = ({one.owner for one in working}, {one.cluster for one in working})
    if is_twice and len(owners - {""}) > 1:
        kinds = enumerated(sorted(owners - {""}), DAEMONS_SHOWN)
        return f"daemons run controllers of one name, but of {kinds}: {ONE_NAME}"
    if len(clusters - {""}) > 1:
        names = enumerated(sorted(clusters - {""}), DAEMONS_SHOWN)
        return f"daemons work in different Kubernetes clusters, {names}: {ONE_CLUSTER}"
    if not is_twice:
        return ""
    reason = "daemons run in different modes" if different else f"{alone} daemons run alone"
    return f"every key is synced more than once because {reason}: {ADVICE}"


class KeyEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event about a key, which was reported `count` times; times are RFC 3339."""

    type: str
    reason: str
    message: str
    first: str
    last: str
    count: int = 1


class KeyExplanation(Explanation, frozen=True, kw_only=True):
    """The explanation of a key by one daemon.

    Attributes:
        owned_more: the number of owned objects that `owned` leaves out.
        events: the recorded events about the key, oldest first.
        events_error: why the events couldn't be read; empty if they could.
        member: the daemon that syncs the key if the controller is sharded; empty if it isn't, or
            if no daemon is known to sync the key.
        here: whether the answering daemon syncs the key.
        share: the share of the key if the controller is sharded.
        leaving_s: for how long the answering daemon has been giving this share up, which it does
            when its syncs have ended; 0 if it keeps it.
        planned: what a daemon that only plans would do; None from any other daemon.
    """

    daemon: DaemonProcess
    owned_more: int = 0
    events: list[KeyEvent] = msgspec.field(default_factory=list)
    events_error: str = ""
    share: int | None = None
    leaving_s: float = 0.0
    member: str = ""
    here: bool = True
    planned: KeyPlan | None = None

    def limited(self, count: int) -> "KeyExplanation":
        return replace(
            self,
            owned={kind: keys[:count] for kind, keys in self.owned.items()},
            owned_more=sum(len(keys[count:]) for keys in self.owned.values()),
            held=self.held[:count],
            garbage_held=cut(self.garbage_held),
        )

    @property
    def past(self) -> bool:
        return bool(self.syncs or self.events)


class ObjectName(msgspec.Struct, frozen=True):
    """An object whose manifest is requested, as a `Branch` names it."""

    kind: str
    key: str


class Manifest(msgspec.Struct, frozen=True):
    """An object as a daemon last saw it: JSON without secrets, perhaps without its end."""

    text: str


class Queuing(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request to sync keys, of which `queued` were enqueued.

    `source` is the bucket of the keys, or their kind in a cluster; empty without keys. `unknown`
    have no object, another daemon syncs those `elsewhere`. Of `invalid` and `paused` keys, some
    are named with the reason, and all are counted.
    """

    controller: str
    daemon: DaemonProcess
    queued: int
    source: str = ""
    unknown: list[str] = []
    elsewhere: list[str] = []
    invalid: dict[str, str] = {}
    invalid_count: int = 0
    paused: dict[str, str] = {}
    paused_count: int = 0

    def limited(self, count: int) -> "Queuing":
        paused = first_keys(self.paused, count)
        return replace(self, invalid=first_keys(self.invalid, count), paused=paused)


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request to record keys: all keys that the daemon records."""

    controller: str
    daemon: DaemonProcess
    keys: list[str]


class RecordingPart(msgspec.Struct, frozen=True, kw_only=True):
    """Part number *part*, from 0, of the JSON text of a recording.

    `started` is the time of the recorded sync; RFC 3339.
    """

    daemon: DaemonProcess
    started: str
    part: int
    parts: int
    text: str


class ControllerPlan(GarbagePlan, frozen=True, kw_only=True):
    """A plan of garbage collection, with the controller that it's for."""

    controller: str

    @classmethod
    def of(cls, plan: GarbagePlan, controller: str) -> "ControllerPlan":
        return cls(**asdict(plan), controller=controller)


class KeyPlans(Plan, frozen=True, kw_only=True):
    """A plan of some keys by one daemon; `more` counts the actions that it leaves out."""

    daemon: DaemonProcess
    more: int = 0

    def limited(self, count: int) -> "KeyPlans":
        keys = {
            key: replace(plan, error=cut(plan.error), actions=plan.actions[:count])
            for key, plan in self.keys.items()
        }
        unlisted = sum(len(plan.actions[count:]) for plan in self.keys.values())
        garbage = self.garbage if self.garbage is UNSET else first_orphans(self.garbage, count)
        return replace(self, keys=keys, more=self.more + unlisted, garbage=garbage)


P = TypeVar("P", bound=GarbagePlan)


def first_orphans(plan: P, count: int) -> P:
    """Return the plan with its first *count* orphans; `more` counts the others."""
    return replace(plan, orphans=plan.orphans[:count], more=plan.more + len(plan.orphans[count:]))


def fitting(limit: int, count: int, answer: Callable[[int], msgspec.Struct]) -> bytes:
    """Return an answer as JSON of at most *limit* bytes.

    *answer* returns the answer with at most the given number of entries in each list. It's called
    with *count*, and with half of the last number until the JSON fits or the lists are empty.
    """
    encoded = msgspec.json.encode(answer(count))
    while len(encoded) > limit and count:
        count //= 2
        encoded = msgspec.json.encode(answer(count))
    return encoded


def first_keys(texts: Mapping[str, str], count: int) -> dict[str, str]:
    """Return the first *count* keys in alphabetical order, with short texts."""
    return {key: cut(texts[key]) for key in nsmallest(count, texts)}


def cut(text: str) -> str:
    """Return the text without its middle part if it has more than `TEXT_MAX` characters."""
    return shortened(text, TEXT_MAX)


def with_past(syncs: list[SyncRecord], events: Iterable[KvEvent]) -> list[SyncRecord]:
    """Return the last syncs, with those that earlier processes recorded as events."""
    known = {sync.started: sync for sync in syncs}
    for event in events:
        if event.sync is not UNSET and event.sync.started not in known:
            note = asdict(event.sync)
            error = event.message if note.pop("failures") else ""
            note.pop("handler")
            known[event.sync.started] = SyncRecord(**note, error=error)
    return sorted(known.values(), key=lambda sync: sync.started)[-RECORDS_MAX:]
