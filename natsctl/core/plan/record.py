"""Records the writes of a plan by the key whose sync made them, and describes them as actions."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from natsctl.core.tape import place_of
from natsctl.errors import DECODE_ERRORS, PlanningError, RetryAfter
from natsctl.model import exact_json
from natsctl.model.documents import SERVERS_OWN, Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.masking import Masker, is_secret, with_texts
from natsctl.model.plans import (
    Action,
    Difference,
    KeyPlan,
    MergeKeys,
    Path,
    PlanSummary,
    differences,
)
from natsctl.telemetry.hiding import MASK, error_text, hidden
from natsctl.telemetry.logger import current, get_logger

log = get_logger(__name__)

KEYS_MAX = 10_000  # of a continuous plan
RETURNS_MAX = 10  # writes of one object by one key, each after another key's
GROWTH_MAX = 100  # primaries that syncs make, for each other one and beyond the first hundred

Call = Literal["create", "update", "delete", "adopt"]

_Place = tuple[str, str]  # the bucket or the kind of an object, and its key


class _Write(msgspec.Struct):
    """The first state and the last state of an object that a key's syncs wrote."""

    kind: Kind[Any]
    before: bytes | None
    after: bytes | None
    reason: str | UnsetType


class PlannedChange(msgspec.Struct, frozen=True):
    """An object before and after the writes of a key's syncs, as JSON values without secrets.

    A value is None if the object does not exist.
    """

    kind: str
    key: str
    before: Any
    after: Any


class _KeyRecord(msgspec.Struct, eq=False):
    """The writes of one key's syncs, and the result of its last sync."""

    writes: dict[_Place, _Write] = {}
    external: dict[tuple[str, str, Call], Action] = {}
    error: str = ""
    held_back: str = ""
    after_s: float | None = None
    failed_at: int = 0  # the number of writes when the sync failed
    final: bool = False  # whether no further sync repeats what has failed

    @property
    def plan(self) -> KeyPlan:
        actions = [
            action
            for (_, key), write in self.writes.items()
            for action in actions_of(write.kind, key, write.before, write.after, write.reason)
        ]
        return KeyPlan(
            error=self.error,
            after_s=self.after_s,
            actions=(*actions, *self.external.values()),
            held_back=self.held_back or UNSET,
        )


class PlanRecord:
    """The writes and the results of the syncs of one controller in a plan.

    Args:
        continuous: whether the plan goes on until it is stopped. Sync loops then retry failed keys,
            every planned write is logged, and the oldest keys are dropped above `KEYS_MAX`.
            Otherwise `to_retry` decides about retries.
    """

    def __init__(self, *, continuous: bool = False) -> None:
        self.continuous = continuous
        self.syncs = 0
        self.version = 0  # grows with every write
        self.counts: Counter[tuple[str, str]] = Counter()  # planned writes, by effect and kind
        self.primaries = ""  # the bucket or the kind of the primaries, if syncs may make some
        self._made = 0  # primaries that syncs made
        self._keys: dict[str, _KeyRecord] = {}  # that wrote, failed, or ask to come back
        self._quiet: set[str] = set()  # keys without any of that
        self._writers: dict[_Place, str] = {}  # the key that wrote an object last
        self._returns: Counter[tuple[str, str, str]] = Counter()  # by object and key

    # ---- what happens

    def check(self, place: str, kind: Kind[Any], key: str) -> None:
        """Raise `PlanningError` if two keys change an object back and forth without end.

        The same holds for primaries that make primaries without end.
        """
        if self.continuous:
            return
        others = max(0, self.keys_seen - self._made)
        if place == self.primaries and self._made > GROWTH_MAX * (others + GROWTH_MAX):
            raise PlanningError(f"primaries make primaries: the plan follows {self._made} of them")
        sync_key = _syncing()
        last = self._writers.get((place, key), sync_key)
        self._writers[place, key] = sync_key
        if last == sync_key:
            return
        self._returns[place, key, sync_key] += 1
        if self._returns[place, key, sync_key] > RETURNS_MAX:
            raise PlanningError(
                f"{kind.name}/{key} is also written by the sync of {last}: the two would change it "
                "back and forth"
            )

    def wrote(
        self, place: str, kind: Kind[Any], key: str, before: bytes | None, after: bytes | None
    ) -> None:
        """Record that the present sync changed an object of the bucket or the kind *place*."""
        self.version += 1
        self._made += place == self.primaries and before is None
        sync_key = _syncing()
        writes = self._record(sync_key).writes
        known = writes.pop((place, key), None)
        first = before if known is None else known.before
        writes[place, key] = _Write(kind, first, after, _reason.get())
        effect = "delete" if after is None else "create" if before is None else "update"
        self._count(effect, kind.name, key, sync_key)

    def called(
        self, place: str, kind: Kind[Any], key: str, call: Call, *, differs: str = ""
    ) -> None:
        """Record that the present sync would change the external resource of an object.

        *differs* says what the change is about.
        """
        sync_key = _syncing()
        action = Action(
            action="external", kind=kind.name, key=key, call=call, differs=differs or UNSET
        )
        self._record(sync_key).external[place, key, call] = action
        self._count(f"external {call}", kind.name, key, sync_key)

    def superseded(self, place: str, key: str) -> None:
        """Forget the planned writes of an object that another client has changed since."""
        for sync_key, record in list(self._keys.items()):
            record.writes.pop((place, key), None)
            for call in get_args(Call):
                record.external.pop((place, key, call), None)
            if not (record.writes or record.external or record.error):
                del self._keys[sync_key]

    def synced(self, key: Hashable, after_s: float | None) -> None:
        self.syncs += 1
        name = str(key)
        if name not in self._keys and (after_s is None or self.continuous):
            if not self.continuous:
                self._quiet.add(name)
            return
        record = self._record(name)
        record.after_s, record.held_back = after_s, ""
        if not record.final:
            record.error = ""

    def failed(self, key: Hashable, error: Exception) -> None:
        """Record a sync that raised; `RetryAfter` is a request to come back."""
        if isinstance(error, RetryAfter):
            self.synced(key, error.delay_s)
            return
        self.syncs += 1
        record = self._record(str(key))
        record.error, record.after_s, record.held_back = error_text(error), None, ""
        record.failed_at = self.version

    def skipped(self, key: str, reason: str) -> None:
        self._record(key).error = reason

    def held_back(self, key: Hashable, reason: str) -> None:
        """Record that a key is not synced because it is paused or quarantined."""
        self._record(str(key)).held_back = reason

    def dropped(self, key: str, error: Exception) -> None:
        """Record that a call for the key failed, which no later sync of the key repeats."""
        record = self._record(key)
        record.error, record.final = error_text(error), True

    def _count(self, effect: str, kind: str, key: str, sync_key: str) -> None:
        self.counts[effect, kind] += 1
        if self.continuous:
            log.info("planned a change", action=effect, kind=kind, object=key, key=sync_key)

    # ---- results

    @property
    def keys_seen(self) -> int:
        """The number of keys that were synced, or that wrote anything."""
        return len(self._quiet) + len(self._keys)

    def to_retry(self) -> list[str]:
        """Return the failed keys whose sync came before the newest write."""
        return [
            key
            for key, record in self._keys.items()
            if record.error and record.failed_at < self.version and not record.final
        ]

    def key_plan(self, key: str) -> KeyPlan:
        record = self._keys.get(key)
        return KeyPlan() if record is None else record.plan

    def keys(self) -> dict[str, KeyPlan]:
        """Return the plans of the keys that do or request anything, fail, or are held back."""
        plans = {key: record.plan for key, record in sorted(self._keys.items())}
        return {key: plan for key, plan in plans.items() if plan != KeyPlan()}

    def changes(self) -> Iterator[PlannedChange]:
        """Yield the objects that change, in the order of the keys that write them."""
        for _, record in sorted(self._keys.items()):
            for (_, key), write in record.writes.items():
                old, new = _value(write.kind, write.before), _value(write.kind, write.after)
                before, after = _Mask(write.kind, old, new).told_apart(old, new)
                if before != after:
                    yield PlannedChange(write.kind.name, key, before, after)

    def summary(
        self, keys: dict[str, KeyPlan], existing: Callable[[Collection[str]], int]
    ) -> PlanSummary:
        """Return the counts of these plans, and of the keys that change nothing.

        *existing* returns how many of some keys exist.
        """
        busy = {key for key, plan in keys.items() if plan.actions or plan.error or plan.held_back}
        synced = self._quiet | self._keys.keys()
        return PlanSummary.of(keys.values(), unchanged=existing(synced - busy))

    def _record(self, key: str) -> _KeyRecord:
        record = self._keys.get(key)
        if record is None:
            record = self._keys[key] = _KeyRecord()
            self._quiet.discard(key)
            if self.continuous and len(self._keys) > KEYS_MAX:
                del self._keys[next(iter(self._keys))]
        return record


def _syncing() -> str:
    """Return the key that is being synced; empty outside of a sync."""
    sync: Any = current.get()  # only syncs are in it
    return "" if sync is None else sync.key


_reason: ContextVar[str | UnsetType] = ContextVar("reason", default=UNSET)


@contextmanager
def because(reason: str) -> Iterator[None]:
    """Give the *reason* for the deletions in the context."""
    token = _reason.set(reason)
    try:
        yield
    finally:
        _reason.reset(token)


# ---- the actions of a write

_OWN_NAMES = ("owner-kind", "owner-key", "applied", "installation")
_SECRET_FIELDS = ("data", "stringData")
_NAMES = re.compile(r'[^.\[\]"]+')  # in a path


def actions_of(
    kind: Kind[Any], key: str, before: bytes | None, after: bytes | None, reason: str | UnsetType
) -> Iterator[Action]:
    """Yield the actions that change the object from *before* to *after*; None does not exist."""
    if before == after:
        return
    if after is None:
        yield Action(action="delete", kind=kind.name, key=key, reason=reason)
        return
    fields = value_differences(kind, before, after)
    if before is None:
        yield Action(action="create", kind=kind.name, key=key, diff=fields)
        return
    of_status = ("status.", "status[")
    status = tuple(
        field
        for field in fields
        if not kind.plain and (field.path == "status" or field.path.startswith(of_status))
    )
    desired = tuple(field for field in fields if field not in status)
    if desired:
        yield Action(action="update", kind=kind.name, key=key, diff=desired)
    if status:
        yield Action(action="status", kind=kind.name, key=key, diff=status)


def value_differences(
    kind: Kind[Any], before: bytes | None, after: bytes | None
) -> tuple[Difference, ...]:
    """Return the differing fields of two values of a kind, without secrets.

    The fields that the server sets are left out. Labels and annotations of natsctl are left out
    unless nothing else differs, and of an object that is created.
    """
    old, new = _value(kind, before), _value(kind, after)
    compared = differences(old, new, merge_keys=merge_keys_of(kind))
    visible = [diff for diff in compared if not _is_own(diff.path)]
    if not visible and before is not None:
        visible = compared
    mask = _Mask(kind, old, new)
    return tuple(
        Difference(diff.path, *mask.told_apart(diff.before, diff.after, _NAMES.findall(diff.path)))
        for diff in visible
    )


def _value(kind: Kind[Any], value: bytes | None) -> object:
    if value is None:
        return None
    try:
        parsed = exact_json.decode(value)
    except DECODE_ERRORS:
        return value.decode(errors="backslashreplace")
    if not isinstance(parsed, dict):
        return parsed
    metadata = parsed.get("metadata")
    if not isinstance(metadata, dict) or (kind.plain and kind.type is not bytes):
        return parsed
    kept = {name: value for name, value in metadata.items() if name not in SERVERS_OWN}
    other_fields = {name: value for name, value in parsed.items() if name != "metadata"}
    return {**other_fields, "metadata": kept} if kept else other_fields


def _is_own(path: str) -> bool:
    """Return whether natsctl alone writes the field: a label or an annotation of a secondary."""
    if not path.startswith(('metadata.labels["', 'metadata.annotations["')):
        return False
    return path.endswith(tuple(f'/{name}"]' for name in _OWN_NAMES))


class _Mask:
    """Masks the secrets of an object before and after a change.

    A secret that was masked in a field is masked in every other text too.
    """

    def __init__(self, kind: Kind[Any], before: object, after: object) -> None:
        self._masker, place = Masker(), place_of(kind)
        for value in (before, after):
            self._masker.learn(value, place=place)
        self._masker.learned()
        self._hides = _SECRET_FIELDS if is_secret(place) else ()

    def told_apart(
        self, before: object, after: object, names: Sequence[str] = ()
    ) -> tuple[object, object]:
        """Return both values of a field without secrets; what differs in a secret stays different.

        *names* are those of the field and of the fields around it.
        """
        if isinstance(before, dict) or isinstance(after, dict):
            old = before if isinstance(before, dict) else {}
            new = after if isinstance(after, dict) else {}
            pairs = {
                name: self.told_apart(old.get(name), new.get(name), (*names, name))
                for name in dict.fromkeys((*old, *new))
            }
            return (
                {name: pairs[name][0] for name in old} if isinstance(before, dict) else before,
                {name: pairs[name][1] for name in new} if isinstance(after, dict) else after,
            )
        masked = self._masked(before, names), self._masked(after, names)
        if before != after and masked[0] == masked[1] and None not in (before, after):
            return f"{masked[0]} (before)", f"{masked[1]} (after)"
        return masked

    def _masked(self, value: object, names: Sequence[str]) -> object:
        if value is None or (names and names[0] in self._hides):
            return None if value is None else MASK
        name = names[-1] if names else ""
        return with_texts(self._masker.masked({name: value}, place="")[name], hidden)


# ---- the fields that identify the items of a list: its merge keys

# The JSON Schema of a kind names them: the published one, or that of the kind's type. The lists of
# the built-in Kubernetes kinds have a fixed table.

LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
TYPES_MAX = 256  # whose schemas are kept
_REF = "#/$defs/"
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")

_KUBE_MERGE_KEYS: dict[str, Sequence[str]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ownerReferences": ("uid",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
_KUBE_PORT_KEYS: Sequence[Sequence[str]] = (("containerPort", "protocol"), ("port", "protocol"))


def merge_keys_of(kind: Kind[Any]) -> MergeKeys:
    """Return the merge keys of the kind's lists; the kind's schema outranks the fixed table."""
    declared: type = kind.type

    def merge_keys(path: Path) -> Sequence[str]:
        known = kind.schema if isinstance(kind, KvKind) else None
        schema = schema_of(declared) if known is None else known
        declared_keys = declared_merge_keys(schema, path)
        if declared_keys or not path:
            return declared_keys
        if not isinstance(kind, KubeKind):
            return ("type",) if path == ("status", "conditions") else ()
        if path[-1] == "ports":
            return _KUBE_PORT_KEYS[0] if "containers" in path[-2:] else _KUBE_PORT_KEYS[1]
        return _KUBE_MERGE_KEYS.get(path[-1], ())

    return merge_keys


def declared_merge_keys(schema: Document, path: Path) -> Sequence[str]:
    """Return the merge keys that a JSON Schema names for the list at *path*."""
    nodes = list(_alternatives(schema, schema))
    for name in path:
        inner = [field for node in nodes for field in _fields_of(schema, node, name)]
        nodes = [node for field in inner for node in _alternatives(schema, field)]
    for node in nodes:
        if isinstance(keys := node.get(LIST_MAP_KEYS), list):
            return [key for key in keys if isinstance(key, str)]
    return ()


@lru_cache(TYPES_MAX)
def schema_of(declared: type) -> Document:
    """Return the JSON Schema of a type; empty if the type has none, or names no merge keys."""
    try:
        schema = msgspec.json.schema(declared, schema_hook=lambda _: {"$comment": "any value"})
        encoded = msgspec.json.encode(schema)
    except (TypeError, ValueError):
        return {}
    return msgspec.json.decode(encoded, type=Document) if LIST_MAP_KEYS.encode() in encoded else {}


def _alternatives(schema: Document, node: object) -> Iterator[Document]:
    """Yield the schemas that a value may have, without references."""
    if not isinstance(node, dict):
        return
    yield node
    reference, definitions = node.get("$ref"), schema.get("$defs")
    if isinstance(reference, str) and isinstance(definitions, dict):
        yield from _alternatives(schema, definitions.get(reference.removeprefix(_REF)))
    for word in _ALTERNATIVES:
        for alternative in node.get(word, ()):
            yield from _alternatives(schema, alternative)


def _fields_of(schema: Document, node: Document, name: str) -> Iterator[object]:
    """Yield the schemas of a field of a map, or of the items of a list of maps."""
    for item in _alternatives(schema, node.get("items")):
        yield from _fields_of(schema, item, name)
    fields = node.get("properties")
    if isinstance(fields, dict) and name in fields:
        yield fields[name]
    else:
        yield node.get("additionalProperties")
