"""The session of this process in a controller: one heartbeat, and when the session is over.

A session has a name that's never used again, and one heartbeat, which nobody else writes. It renews
the heartbeat by compare-and-set. A renewal counts when it *came back* through the watch, and then
from the time at which it was *sent*: so this process never trusts an answer that others can't see,
and no two clocks are compared. All times are shares of the time to live, by this process's clock:

    renew 0.15 · step down 0.5 · void 0.7 · others wait 0.85

A session that stepped down, or whose renewal was refused, is over for good. Its process begins
again under another name.

*Assumes* that the clocks of two processes run at the same speed within a tenth.
"""

import functools
import math
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, TypeVar

import msgspec

from natsctl.core.coordination.term import SHARES
from natsctl.errors import DECODE_ERRORS, UsageError
from natsctl.model.kinds import KvKind, kv

RENEW = 0.15  # this process renews its heartbeat
RETRY = 0.05  # after a request that failed
STEP_DOWN = 0.5  # it cancels its syncs if no renewal came back
VOID = 0.7  # none of them takes a step or sends a write any more
WAIT = 0.85  # for what others may still do: before an end mark, and before a lost record is made
TTL_MIN_S, TTL_MAX_S = 1.0, 3600.0

S = TypeVar("S")

Digits = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]+\Z")]  # a bit for each share

BUCKET = "natsctl_leases"
_SENT_MAX = 64  # renewals whose times are kept


def steady() -> float:
    """Return seconds that go on while this process is stopped and while its machine sleeps.

    The event loop's clock is unsuitable: uvloop's stands still while a callback runs.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Workload(msgspec.Struct, frozen=True, omit_defaults=True):
    """A controller's work: its primaries' kind, the installation's id, and the cluster's identity.

    A field is empty if it isn't known, or if the controller needs no cluster.
    """

    owner: str = ""
    installation: str = ""
    cluster: str = ""

    def same(self, other: "Workload") -> bool:
        """Return whether both may be the same: no field that both know differs."""
        return self == other or not self._differing(other)

    def only_elsewhere(self, other: "Workload") -> bool:
        return self._differing(other) == ["cluster"]

    def _differing(self, other: "Workload") -> list[str]:
        theirs = msgspec.structs.asdict(other)
        ours = msgspec.structs.asdict(self).items()
        return [name for name, value in ours if value and theirs[name] not in {"", value}]

    def __str__(self) -> str:
        owner = self.owner or "an unknown kind"
        return f"{owner} of installation {self.installation}" if self.installation else owner


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
    ttl_s: Annotated[float, msgspec.Meta(gt=0.0, le=TTL_MAX_S)]
    shares: int
    renewals: int = 0
    seen: int = 0
    ready: bool = False
    over: bool = False
    unreadable: Digits = "0"
    work: Workload = UNKNOWN_WORKLOAD


class Record(msgspec.Struct, frozen=True, rename="camel"):
    """Who has which of a controller's *shares*: a mask for each session, in hexadecimal digits.

    Every change raises the *epoch*.
    """

    epoch: int
    shares: int
    members: dict[str, Digits] = {}
    work: Workload = UNKNOWN_WORKLOAD


class Former(msgspec.Struct, frozen=True, rename="camel"):
    """A leader's lease or a member's record of version 0.2, whose process may work."""

    holder: str
    ttl_s: float
    released: bool = False
    left: bool | None = None


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
        mask = int(digits, 16)
        if not mask or mask >> record.shares or mask & every:
            return None, {}
        masks[session], every = mask, every | mask
    return record, masks


def record_key(name: str) -> str:
    """Return the key of a controller's record."""
    return f"{name}.record"


@functools.lru_cache(maxsize=1024)  # each step of a session asks for it several times
def heartbeat_key(name: str, session: str) -> str:
    """Return the key of a session's heartbeat."""
    return f"{name}.sessions.{re.sub('[^A-Za-z0-9-]', '_', session)}"


def records_of(name: str) -> KvKind[bytes]:
    """Return the part of the bucket with a controller's record and heartbeats."""
    return kv(bytes, bucket=BUCKET, keys=f"{name}.>", history=1)


def former_lease_of(name: str) -> KvKind[bytes]:
    """Return the part of the bucket with the lease of a leader of version 0.2."""
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

    Raises `UsageError` if *ttl_s* is too short to renew the heartbeat, or too long.
    """

    def __init__(self, name: str, identity: str, ttl_s: float) -> None:
        if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
            raise UsageError(f"a lease of {ttl_s:g} s: give it {TTL_MIN_S:g} s to {TTL_MAX_S:g} s")
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
        step_down_at = self._returned + STEP_DOWN * self.ttl_s
        return step_down_at if self._returned > -math.inf else math.inf

    @property
    def void_at(self) -> float:
        """From when on nothing of this session takes a step or sends a write."""
        return self._returned + VOID * self.ttl_s

    def lapse(self, now: float) -> bool:
        """Return whether the session is over, and end it for good if its time is."""
        if not self.over and now >= self.step_down_at:
            self.over = "the lease could not be renewed in time"
        return bool(self.over)

    def end(self) -> None:
        """End the session for good, because another process ended it."""
        self.over, self.refused = self.over or "another process ended this session", True

    def renew(self, now: float, heartbeat: SessionHeartbeat) -> SessionHeartbeat:
        """Return the next renewal, which is sent *now*."""
        self.renewals += 1
        self._sent[self.renewals] = now
        self._sent.pop(self.renewals - _SENT_MAX, None)
        self.renew_at = now + RENEW * self.ttl_s
        return msgspec.structs.replace(heartbeat, renewals=self.renewals)

    def came_back(self, value: bytes | None, revision: int) -> None:
        """Note what the watch shows of the heartbeat: only this extends the session."""
        heartbeat = decoded(value, SessionHeartbeat)
        if heartbeat is None or heartbeat.session != self.session:  # deleted, or garbled
            self.revision, self.renew_at = revision if value else 0, -math.inf
        elif heartbeat.over:
            self.end()
        else:
            self.revision = max(self.revision, revision)
            self._returned = max(self._returned, self._sent.get(heartbeat.renewals, -math.inf))
