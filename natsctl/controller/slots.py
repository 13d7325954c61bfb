"""Declares the kinds of a controller, as attributes of its class."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar, get_args, overload

from natsctl.controller.kube_secondary import KubeSecondary
from natsctl.controller.owned import Secondary
from natsctl.core.readers import CacheReader, Primary, Tertiary
from natsctl.core.table import IndexFunc
from natsctl.errors import UsageError
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind, OnImmutable
from natsctl.model.store import Change

STATUSES = ".status"  # the end of the name of a slot that nobody declares

T = TypeVar("T")
R = TypeVar("R", bound=CacheReader[Any])


Predicate = Callable[[Change[Any]], bool]
WakeOn = Literal["any", "spec"]


class Slot(Generic[R]):
    """Declares one kind of a controller; on an instance, it is the reader of the kind."""

    def __init__(
        self,
        role: type[R],
        kind: Kind[Any],
        indexes: Mapping[str, IndexFunc[Any]] | None,
        predicate: Predicate | None = None,
        on_immutable: OnImmutable = "fail",
    ) -> None:
        self.role = role
        self.kind = kind
        self.on_immutable: OnImmutable = on_immutable
        self.indexes = dict(indexes or {})
        self.predicate = predicate  # which changes enqueue the owner; None for all
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "Slot[R]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> R: ...

    def __get__(self, instance: object | None, owner: type) -> "Slot[R] | R":
        """Return the declaration; raises `UsageError` on an instance whose slot is not open."""
        if instance is None:
            return self
        raise UsageError(
            f"{owner.__name__}.{self.name} cannot be used yet: a ControllerRuntime opens it"
        )


def primary(
    kind: KvKind[T], *, indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None
) -> Slot[Primary[T]]:
    """Declare the kind whose objects say what you want; each of its keys is synced.

    *indexes* are functions that return the values of an object, by index name. Raises `UsageError`
    for a kind that isn't stored in NATS.
    """
    if isinstance(kind, KubeKind):
        raise UsageError(
            f"{kind.name} cannot be the primary: primaries are kept in NATS, declare it with kv(…)"
        )
    return Slot(Primary, kind, indexes)


@overload
def secondary(
    kind: KvKind[T],
    *,
    indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
    wake_on: WakeOn = "any",
    predicate: Predicate | None = None,
) -> Slot[Secondary[T]]: ...


@overload
def secondary(
    kind: KubeKind[T],
    *,
    indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
    wake_on: WakeOn = "any",
    predicate: Predicate | None = None,
    on_immutable: OnImmutable = "fail",
) -> Slot[KubeSecondary[T]]: ...


def secondary(
    kind: KvKind[Any] | KubeKind[Any],
    *,
    indexes: Mapping[str, Callable[[Any], Iterable[str]]] | None = None,
    wake_on: WakeOn = "any",
    predicate: Predicate | None = None,
    on_immutable: OnImmutable = "fail",
) -> Slot[Secondary[Any]] | Slot[KubeSecondary[Any]]:
    """Declare a kind of objects that you make; a change of one enqueues its owner.

    Args:
        kind: the kind of the objects.
        indexes: functions that return the values of an object, by index name.
        wake_on: `any` enqueues the owner at every change that its own syncs did not make; `spec`
            ignores changes of nothing but the status, which saves syncs for busy kinds such as
            Deployments.
        predicate: a function of a `Change` that returns whether the change enqueues the owner. If
            the function raises, the change does.
        on_immutable: `fail` raises `ImmutableFieldError` if a manifest changes an immutable field,
            such as a Job's template; `recreate` deletes the owner's object, and creates it again
            once it is gone.

    The *predicate* also gets changes that create or delete an object. Raises `UsageError` for
    another *wake_on* or *on_immutable*.
    """
    kind.require_metadata()
    _refuse_statuses(kind)
    if on_immutable not in get_args(OnImmutable):
        raise UsageError(f"on_immutable is fail or recreate, not {on_immutable!r}")
    if predicate is not None and not callable(predicate):
        raise UsageError(f"predicate={predicate!r}: give a function that takes a Change")
    if wake_on not in get_args(WakeOn):
        raise UsageError(f"wake_on={wake_on!r}: give 'any' or 'spec'")
    condition = predicate
    if wake_on == "spec":
        condition = (
            desired_changed
            if predicate is None
            else lambda change: desired_changed(change) and predicate(change)
        )
    if isinstance(kind, KubeKind):
        return Slot(KubeSecondary, kind, indexes, condition, on_immutable)
    return Slot(Secondary, kind, indexes, condition)


def tertiary(
    kind: Kind[T], *, indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None
) -> Slot[Tertiary[T]]:
    """Declare a kind that you only read; a change of an object enqueues no key."""
    _refuse_statuses(kind)
    return Slot(Tertiary, kind, indexes)


def _refuse_statuses(kind: Kind[Any]) -> None:
    if isinstance(kind, KvKind) and kind.statuses is not None:
        raise UsageError(f"{kind.name}: only a primary has a status_bucket")


def slots(cls: type) -> Iterator[Slot[Any]]:
    """Return the slots that a controller class declares or inherits, each before its statuses."""
    declared = (
        name
        for base in reversed(cls.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, Slot)
    )
    for name in dict.fromkeys(declared):
        slot = getattr(cls, name, None)
        if isinstance(slot, Slot):
            yield slot
            if isinstance(slot.kind, KvKind) and slot.kind.statuses is not None:
                statuses: Slot[Any] = Slot(Secondary, slot.kind.statuses, None)
                statuses.name = f"{slot.name}{STATUSES}"
                yield statuses


def makes_secondaries(cls: type) -> bool:
    """Return whether a controller class declares a secondary."""
    return any(slot.role not in (Primary, Tertiary) for slot in slots(cls))


def only_primary(cls: type) -> Slot[Primary[Any]]:
    """Return the primary of a controller class; raises `UsageError` unless there is exactly one."""
    primaries = [slot for slot in slots(cls) if slot.role is Primary]
    if len(primaries) == 1:
        return primaries[0]
    declared = ", ".join(slot.name for slot in primaries) or "none"
    raise UsageError(
        f"{cls.__name__} needs exactly one primary, as in "
        f"`apps = primary(kv(App, bucket='apps'))`, and has {declared}"
    )


def desired_changed(change: Change[Any]) -> bool:
    """Return whether the object was created, deleted, or changed in more than its status.

    Fields that the server keeps up to date, such as `resourceVersion`, do not count.
    """
    if change.before is None or change.after is None:
        return True
    return change.kind.differs(change.before.value, change.after.value)
