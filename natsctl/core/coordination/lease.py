"""The session of this process in a controller: one heartbeat, and when the session is over.

A session has a name that's never used again, and one heartbeat, which nobody else writes. It renews
the heartbeat by compare-and-set. A renewal counts when it *came back* through the watch, and then
from the time at which it was *sent*: so this process never trusts an answer that others can't see,
and no two clocks are compared. All times are shares of the time to live, by this process's clock:

    renew 0.15 · step down 0.5 · void 0.7 · others wait 0.85

A session that stepped down, or whose renewal was refused, is over for good. Its process begins
again under another name. Whoever takes over first writes an *end mark* on the heartbeat, by
compare-and-set: a late renewal and an end mark exclude each other.

*Assumes* that the clocks of two processes run at the same speed within a tenth.
"""

import math
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TypeVar

import msgspec

from natsctl.core.coordination.term import SHARES
from natsctl.errors import DECODE_ERRORS, ConflictError, PermissionDeniedError, UsageError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Stores
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

RENEW = 0.15  # this process renews its heartbeat
RETRY = 0.05  # after a request that failed
STEP_DOWN = 0.5  # it cancels its syncs if no renewal came back
VOID = 0.7  # none of them takes a step or sends a write any more
WAIT = 0.85  # for what others may still do: before an end mark, and before a lost record is made
TTL_MIN_S, TTL_MAX_S = 1.0, 3600.0

S = TypeVar("S")

BUCKET = "natsctl_leases"
RECORD = "record"
_DIGITS = re.compile("[0-9a-f]+")
_SENT_MAX = 64  # renewals whose times are kept


def steady() -> float:
    """Return seconds that go on while this process is stopped and while its machine sleeps.

    The event loop's clock is unsuitable: uvloop's stands still while a callback runs.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def check_ttl(ttl_s: float) -> None:
    """Raise `UsageError` for a time to live that is too short to renew, or too long."""
    if not ttl_s >= TTL_MIN_S:
        raise UsageError(f"a lease of {ttl_s:g} s is too short: give it {TTL_MIN_S:g} s or more")
    if ttl_s > TTL_MAX_S:
        raise UsageError(f"a lease of {ttl_s:g} s is too long: give it {TTL_MAX_S:g} s or less")


class Workload(msgspec.Struct, frozen=True, omit_defaults=True):
    """A controller's work: its primaries' kind, the installation's id, and the cluster's identity.

    A field is empty if it isn't known, or if the controller needs no cluster.
    """

    owner: str = ""
    installation: str = ""
    cluster: str = ""

    def same(self, other: "Workload") -> bool:
        """Return whether both may be the same: no field that both know differs."""
        return self._same_controller(other) and _agree(self.cluster, other.cluster)

    def only_elsewhere(self, other: "Workload") -> bool:
        """Return whether both are the same controller, but in different clusters."""
        return self._same_controller(other) and not _agree(self.cluster, other.cluster)

    def _same_controller(self, other: "Workload") -> bool:
        return _agree(self.owner, other.owner) and _agree(self.installation, other.installation)

    def __str__(self) -> str:
        owner = self.owner or "an unknown kind"
        return f"{owner} of installation {self.installation}" if self.installation else owner


def _agree(ours: str, theirs: str) -> bool:
    return not ours or not theirs or ours == theirs


UNKNOWN_WORKLOAD = Workload()
NO_CLUSTERS: Mapping[str, str] = MappingProxyType({})


def name_taken(name: str, holder: str, theirs: Workload, ours: Workload) -> str:
    """Return an error message: another controller has the same name, or works elsewhere."""
    if theirs.only_elsewhere(ours):
        return (
            f"{holder} runs {name} in another Kubernetes cluster: it works in the cluster "
            f"{theirs.cluster}, this one in {ours.cluster}: give both the same kubeconfig, or set "
            "another `name` on one of them"
        )
    return (
        f"{holder} runs another controller that is named {name} too: it works on {theirs}, this "
        f"one on {ours}: set another `name` on one of them"
    )


# ---- what is stored


class SessionHeartbeat(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A session's heartbeat as it's stored; `renewals` makes each write differ from the one before.

    `seen` is the revision of the newest record that the session has seen. `ready` means that it
    takes shares, so others leave it its part. `over` is the end mark: nothing of the session works
    any more. The session can't read objects in the shares of `unreadable`, a mask, because a newer
    version of the controller has stored them.
    """

    session: str
    ttl_s: float
    shares: int
    renewals: int = 0
    seen: int = 0
    ready: bool = False
    over: bool = False
    unreadable: str = ""
    work: Workload = UNKNOWN_WORKLOAD


class Record(msgspec.Struct, frozen=True, rename="camel"):
    """Who has which of a controller's *shares*: a mask for each session, in hexadecimal digits.

    Every change raises the *epoch*.
    """

    epoch: int
    shares: int
    members: dict[str, str] = {}
    work: Workload = UNKNOWN_WORKLOAD


class Former(msgspec.Struct, frozen=True, rename="camel"):
    """A leader's lease or a member's record, as version 0.2 stores them."""

    holder: str
    ttl_s: float
    released: bool = False
    left: bool | None = None

    @property
    def works(self) -> bool:
        """Whether its process may work; the server deletes it some time after a crash."""
        return bool(self.holder) and self.ttl_s > 0 and not self.released and not self.left


def decoded(value: bytes | None, kind: type[S]) -> S | None:
    """Return what is stored, None if natsctl can't have stored it."""
    try:
        return None if value is None else msgspec.json.decode(value, type=kind)
    except DECODE_ERRORS:
        return None


def record_in(value: bytes | None) -> tuple[Record | None, dict[str, int]]:
    """Return the record and its masks by session, None if natsctl can't have stored it."""
    record, every, masks = decoded(value, Record), 0, {}
    if record is None or record.epoch < 1 or record.shares not in {1, SHARES}:
        return None, {}
    for session, digits in record.members.items():
        mask = int(digits, 16) if _DIGITS.fullmatch(digits) else 0
        if not mask or mask >> record.shares or mask & every:
            return None, {}
        masks[session], every = mask, every | mask
    return record, masks


def record_key(name: str) -> str:
    """Return the key of a controller's record."""
    return f"{name}.{RECORD}"


def heartbeat_key(name: str, session: str) -> str:
    """Return the key of a session's heartbeat."""
    return f"{name}.sessions.{re.sub('[^A-Za-z0-9-]', '_', session)}"


def records_of(name: str) -> KvKind[bytes]:
    """Return the part of the bucket with a controller's record and heartbeats."""
    return kv(bytes, bucket=BUCKET, keys=f"{name}.>", history=1)


def former_lease_of(name: str) -> KvKind[bytes]:
    """Return the part of the bucket with the lease that version 0.2 writes."""
    return kv(bytes, bucket=BUCKET, keys=name, history=1)


# ---- the session


def new_identity() -> str:
    """Return the name of this process: its host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Lease:
    """One session of this process: its heartbeat, and the time until which it may work.

    Args:
        name: the controller's name.
        identity: the name of this process; the session's name begins with it.
        ttl_s: the time to live, in seconds.
    """

    def __init__(self, name: str, identity: str, ttl_s: float) -> None:
        self.session = f"{identity}:{secrets.token_hex(4)}"
        self.key = heartbeat_key(name, self.session)
        self.ttl_s = ttl_s
        self.revision = 0  # of the newest message of the heartbeat, as far as it's known
        self.renewals = 0
        self.over = ""  # why the session is over
        self.refused = False  # whether it's over because another process ended it
        self.renew_at = -math.inf
        self._returned = -math.inf  # when the newest renewal that came back was sent
        self._sent: dict[int, float] = {}  # by renewals

    @property
    def step_down_at(self) -> float:
        """When this process cancels its syncs, unless a renewal comes back before."""
        began = self._returned > -math.inf
        return self._returned + STEP_DOWN * self.ttl_s if began else math.inf

    @property
    def void_at(self) -> float:
        """From when on nothing of this session takes a step or sends a write."""
        return self._returned + VOID * self.ttl_s

    def lapse(self, now: float) -> bool:
        """Return whether the session is over, and end it for good if its time is."""
        if not self.over and now >= self.step_down_at:
            self.over = "the lease could not be renewed in time"
        return bool(self.over)

    def end(self, reason: str) -> None:
        """End the session for good, because another process ended it."""
        self.over, self.refused = self.over or reason, True

    def renew(self, now: float, heartbeat: SessionHeartbeat) -> SessionHeartbeat:
        """Return the next renewal, which is sent *now*."""
        self.renewals += 1
        self._sent[self.renewals] = now
        self._sent.pop(self.renewals - _SENT_MAX, None)
        self.renew_at = now + RENEW * self.ttl_s
        return msgspec.structs.replace(heartbeat, renewals=self.renewals)

    def stored(self, revision: int) -> None:
        """Note the revision of a renewal, which the next one replaces."""
        self.revision = max(self.revision, revision)

    def came_back(self, value: bytes | None, revision: int) -> None:
        """Note what the watch shows of the heartbeat: only this extends the session."""
        heartbeat = decoded(value, SessionHeartbeat)
        if heartbeat is None or heartbeat.session != self.session:  # deleted, or garbled
            self.revision, self.renew_at = revision if value else 0, -math.inf
        elif heartbeat.over:
            self.end("another process ended this session")
        else:
            self.stored(revision)
            sent = self._sent.get(heartbeat.renewals, -math.inf)
            self._returned = max(self._returned, sent)


# ---- the first start


class FirstRun(msgspec.Struct, frozen=True):
    """The time at which a process first ran a controller with a lease or shards (RFC 3339)."""

    at: str


FIRST_RUNS: KvKind[FirstRun] = kv(FirstRun, bucket="natsctl", history=1, replicas=None)


def first_run_of(name: str) -> str:
    """Return the key of a controller's `FirstRun`."""
    return f"lease.{name}"


async def is_first_run(stores: Stores, name: str) -> bool:
    """Return whether no process has ever run the controller with a record, and note that one does.

    Then a missing record was never there, so nobody needs to wait for it. Otherwise somebody may
    have deleted the bucket of leases, which its owners notice only at their next renewal. Raises
    `StoreError` if the bucket `natsctl` can't be read or written.
    """
    store = await stores.open(FIRST_RUNS.part(first_run_of(name)))
    record = FirstRun(datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        await store.create(first_run_of(name), msgspec.json.encode(record))
    except ConflictError:
        return False
    except PermissionDeniedError as error:
        log.warning("cannot record the first start of the controller", error=error)
        return False
    return True
