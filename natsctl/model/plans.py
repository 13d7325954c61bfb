"""What natsctl would do: writes of syncs, garbage that goes, and the fields that change."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from natsctl.errors import UsageError
from natsctl.model.documents import same
from natsctl.model.store import planned_revision


class GarbageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When garbage is collected, and when it would be too much at once.

    A cycle runs every `interval_s`, and deletes an orphan after a grace period of `grace_s`. If it
    would delete more than `count_max` objects, it deletes none. The same holds if it would delete
    more than the fraction `share_max` of all owned objects, and more than `share_from` objects.
    """

    interval_s: float = 30.0
    grace_s: float = 60.0
    count_max: int = 1000
    share_max: float = 0.3
    share_from: int = 10

    def __post_init__(self) -> None:
        if not (0 < self.interval_s < math.inf and self.grace_s >= 0 and self.count_max >= 0):
            raise UsageError(
                "GarbageLimits needs an interval_s above 0, a grace_s and a count_max of 0 or more"
            )


class Orphan(msgspec.Struct, frozen=True):
    """A secondary whose owner doesn't exist.

    Attributes:
        revision: its revision when it was found.
        owner: the owner that it names; empty if it names none.
        reason: why it's an orphan.
        proven: whether a delete marker proves that the owner was deleted.
        suspected_s: seconds since it was first found to be an orphan.
        due: whether the grace period is over.
        uid: its uid; empty if its store assigns none.
        held: why it isn't deleted; empty if it may be deleted.
    """

    kind: str
    key: str
    revision: int
    owner: str
    reason: str
    proven: bool
    suspected_s: float
    due: bool
    uid: str = ""
    held: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.key}"


class GarbagePlan(msgspec.Struct, frozen=True):
    """The orphans that a GC cycle would delete.

    Attributes:
        orphans: the orphans that were checked.
        refused: why the cycle deletes nothing; empty if it may delete.
        stores: by kind, the incarnation of the store that has the revisions.
        more: the number of further suspected orphans, which weren't checked.
    """

    orphans: tuple[Orphan, ...]
    refused: str = ""
    stores: dict[str, str] = {}
    more: int = 0


class Kept(msgspec.Struct, frozen=True):
    """An object of a plan that wasn't deleted, and the reason."""

    orphan: Orphan
    reason: str


class Removed(msgspec.Struct, frozen=True):
    """The objects of a plan that were deleted, and the objects that were kept."""

    orphans: tuple[Orphan, ...] = ()
    kept: tuple[Kept, ...] = ()


def orphan_reason(owner: str, deleted_at: int | None) -> str:
    """Return why objects of *owner* are orphans; *deleted_at* is the revision of its marker."""
    if deleted_at is None:
        return f"owner {owner} does not exist, and no delete marker proves its deletion"
    if planned_revision(deleted_at):
        return f"owner {owner} would be deleted"
    return f"owner {owner} was deleted at revision {deleted_at}"


Path = tuple[str, ...]

MergeKeys = Callable[[Path], Sequence[str]]
"""Returns the fields that identify the items of the list at a path; empty if none do."""

_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


class Difference(msgspec.Struct, frozen=True):
    """A field whose value differs between two documents.

    `path` names the field, such as `spec.containers[name=app].image`. `before` and `after` are JSON
    values, None if the field doesn't exist.
    """

    path: str
    before: Any
    after: Any


def differences(
    before: object, after: object, *, merge_keys: MergeKeys = lambda _: ()
) -> list[Difference]:
    """Return the fields that differ, in the order of their paths in *after*.

    Maps are unordered. Items of a list with merge keys are compared with the item of equal keys, in
    any order. Another list is compared item by item if only items changed, else as one value.
    """
    return list(_compared((), before, after, merge_keys))


def _compared(
    path: Path, before: object, after: object, merge_keys: MergeKeys
) -> Iterator[Difference]:
    if same(before, after):
        return
    old_fields, new_fields = _fields(before), _fields(after)
    if old_fields is not None and new_fields is not None and (old_fields or new_fields):
        for name in dict.fromkeys((*new_fields, *old_fields)):
            inner = (*path, name)
            yield from _compared(inner, old_fields.get(name), new_fields.get(name), merge_keys)
        return
    items = _items(before, after, merge_keys(_names(path)))
    if items is None:
        yield Difference(path_text(path), before, after)
        return
    for label, old, new in items:
        yield from _compared((*path, label), old, new, merge_keys)


def _fields(value: object) -> Mapping[str, object] | None:
    """Return the fields of a map; a missing value has none."""
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def _items(
    before: object, after: object, keys: Sequence[str]
) -> list[tuple[str, object, object]] | None:
    """Return the labels of the items with their values, or None to compare the lists as a whole."""
    old, new = _list(before), _list(after)
    if old is None or new is None or not (old or new):
        return None
    if keys:
        old_items, new_items = _by_label(old, keys), _by_label(new, keys)
        if old_items is not None and new_items is not None:
            labels = dict.fromkeys((*new_items, *old_items))
            return [(label, old_items.get(label), new_items.get(label)) for label in labels]
    if len(old) != len(new) or not all(isinstance(item, dict) for item in (*old, *new)):
        return None
    pairs = zip(old, new, strict=True)
    return [
        (f"[{number}]", old_item, new_item) for number, (old_item, new_item) in enumerate(pairs)
    ]


def _list(value: object) -> list[object] | None:
    if value is None:
        return []
    return value if isinstance(value, list) else None


def _by_label(items: Sequence[object], keys: Sequence[str]) -> dict[str, object] | None:
    labelled: dict[str, object] = {}
    for item in items:
        if not isinstance(item, dict):
            return None
        label = ",".join(f"{key}={item[key]}" for key in keys if key in item)
        if not label or label in labelled:
            return None
        labelled[label] = item
    return {f"[{label}]": item for label, item in labelled.items()}


def _names(path: Path) -> Path:
    return tuple(name for name in path if not name.startswith("["))


def path_text(path: Path) -> str:
    """Return the path as text; a name with other characters than a word's is quoted."""
    text = ""
    for name in path:
        if name.startswith("["):
            text += name
        elif _PLAIN.fullmatch(name):
            text += f".{name}" if text else name
        else:
            text += f'["{name}"]'
    return text


ActionType = Literal["create", "update", "delete", "status", "external"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One write that a sync would make.

    Attributes:
        action: `create`, `update` or `delete` an object, change only its `status`, or change an
            `external` resource.
        diff: the fields that would change; secrets are masked.
        reason: why a secondary would be deleted, if its owner doesn't exist.
        call: the external call: `create`, `update` or `delete`; `adopt` takes over a resource that
            natsctl didn't create, without a call.
        differs: what differs at an external resource, in the words of the client that observed it.
    """

    action: ActionType
    kind: str
    key: str
    diff: tuple[Difference, ...] = ()
    reason: str | UnsetType = UNSET
    call: Literal["create", "update", "delete", "adopt"] | UnsetType = UNSET
    differs: str | UnsetType = UNSET

    @property
    def effect(self) -> Literal["create", "update", "delete"]:
        match self.action:
            case "status":
                return "update"
            case "external":
                return "update" if self.call is UNSET or self.call == "adopt" else self.call
            case effect:
                return effect


class KeyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of the syncs of one key."""

    error: str = ""  # why the sync fails; empty if it succeeds
    after_s: float | None = None  # until the next sync, if the handler requests one
    actions: tuple[Action, ...] = ()
    held_back: str | UnsetType = UNSET  # why it isn't synced, if it's paused or quarantined
    failed_before: bool | UnsetType = UNSET  # by the records of its controller


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The number of objects that change, and of keys that fail, change nothing, or are paused."""

    create: int = 0
    update: int = 0
    delete: int = 0
    failed: int = 0
    unchanged: int = 0
    held_back: int | UnsetType = UNSET  # keys, if any
    failed_before: int | UnsetType = UNSET  # failed keys that failed before too, if any

    @classmethod
    def of(cls, keys: Iterable[KeyPlan], *, unchanged: int) -> "PlanSummary":
        counts = {"create": 0, "update": 0, "delete": 0}
        failed = held_back = 0
        for key in keys:
            failed += bool(key.error)
            held_back += bool(key.held_back)
            effects = {(action.kind, action.key, action.effect) for action in key.actions}
            for _, _, effect in effects:
                counts[effect] += 1
        return cls(**counts, failed=failed, unchanged=unchanged, held_back=held_back or UNSET)

    @property
    def changes(self) -> bool:
        return bool(self.create or self.update or self.delete)

    @property
    def newly_failed(self) -> int:
        return self.failed - (self.failed_before or 0)

    def __str__(self) -> str:
        held_back = f", {self.held_back} held back" if self.held_back else ""
        before = f" ({self.failed_before} as before)" if self.failed_before else ""
        return (
            f"Plan: {self.create} to create, {self.update} to change, {self.delete} to delete, "
            f"{self.failed} failed{before}, {self.unchanged} unchanged{held_back}"
        )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects that a controller would have now.

    Attributes:
        keys: the keys that change anything, fail, are held back, or ask to be synced again.
        garbage: the orphans that garbage collection would keep, with the reasons.
        missing: the requested keys that don't exist and change nothing, if any.
    """

    controller: str
    summary: PlanSummary
    keys: dict[str, KeyPlan]
    garbage: GarbagePlan | UnsetType = UNSET
    missing: tuple[str, ...] | UnsetType = UNSET

    def compared(self, failing: Collection[str]) -> Self:
        """Return the plan with the keys marked that failed before, beside those marked already."""
        keys = {
            key: replace(plan, failed_before=True) if plan.error and key in failing else plan
            for key, plan in self.keys.items()
        }
        count = sum(bool(plan.error and plan.failed_before) for plan in keys.values())
        return replace(self, keys=keys, summary=replace(self.summary, failed_before=count or UNSET))
