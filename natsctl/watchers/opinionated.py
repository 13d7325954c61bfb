"""A watcher that misses nothing: finalizers tell it what it has handled and what it has not."""

import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from natsctl.core.objects.compare_and_set import rewrite
from natsctl.core.objects.finalizers import release
from natsctl.core.sync.calls import awaitable
from natsctl.errors import NotFoundError, UsageError
from natsctl.model import documents
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Store, Stored
from natsctl.watchers.watcher import OnSnapshot, OnUpdate, ResourceWatcher, Snapshot

FinalizerSupplier: TypeAlias = Callable[[Kind[Any]], str]
"""Names the finalizer that holds objects of a kind."""

LENGTH_MAX = 63  # of a finalizer's name, as Kubernetes has it
IN_PROGRESS = "-wip"


def default_finalizer_supplier(kind: Kind[Any]) -> str:
    """Return `operator.{version}.{kind}.{group}`.

    Of a kind in NATS the version is `v1`, and the group its bucket. Kinds that come with a
    Kubernetes server take names of a domain only: there `natsctl.io/` stands before it.
    """
    if not isinstance(kind, KubeKind):
        return f"operator.v1.{kind.name}"
    group, _, version = kind.api_version.rpartition("/")
    name = f"operator.{version}.{kind.kind}"
    if not group:
        return f"natsctl.io/{name}"
    built_in = "." not in group or group.endswith(".k8s.io")
    return f"{'natsctl.io/' if built_in else ''}{name}.{group}"


def shortened(name: str, suffix: str = "") -> str:
    """Return a finalizer's name, cut so that with *suffix* it is as long as one may be."""
    domain, slash, last = name.rpartition("/")
    cut = re.sub(r"[^A-Za-z0-9]+$", "", last[: LENGTH_MAX - len(suffix)])
    return f"{domain}{slash}{cut}{suffix}"


class _Own(msgspec.Struct, frozen=True):
    """The finalizers that an object has since this revision, by what we wrote.

    What it was up to the revision `added` is part of what `add_func` was given.
    """

    revision: float
    finalizers: tuple[str, ...]
    added: int = 0


class OpinionatedWatcher:
    """Calls a function for each thing that happens, across restarts and time away.

    *Guarantees.* A finalizer under an in-progress name is stored before `add_func` runs, and gets
    its own name when that has succeeded. So an object with neither is new, one with the first was
    begun, and both are told to `add_func`; one with the second, found at the start, is told to
    `sync_func`. An object that is marked deleted is told to `delete_func` and nothing else, and
    let go only once that has succeeded; one that was deleted past its finalizer (`nats kv del`)
    is told to it too, where its delete marker and last state are there. `update_func` is told what
    desires something else than before. Finalizers of others are left alone, and every write tests
    the revision. A call that failed is made again, with what the object is by then, so functions
    must bear being called twice.

    Args:
        kind: whose objects are watched; it needs metadata.
        add_func: for objects that are new.
        update_func: for objects that desire something else.
        delete_func: for objects that are to go.
        sync_func: for objects that were handled before this process began.
        finalizer_supplier: names the finalizer; the name is cut to 63 characters. Each watcher of
            a kind needs its own.

    Raises `UsageError` where objects of the kind have no metadata, or not all of them is watched.

    Seed: grafana-app-sdk operator v0.9.10, `OpinionatedWatcher`.
    """

    def __init__(
        self,
        kind: Kind[Any],
        *,
        add_func: OnSnapshot | None = None,
        update_func: OnUpdate | None = None,
        delete_func: OnSnapshot | None = None,
        sync_func: OnSnapshot | None = None,
        finalizer_supplier: FinalizerSupplier = default_finalizer_supplier,
    ) -> None:
        kind.require_metadata()
        if isinstance(kind, KubeKind) and kind.metadata_only:
            raise UsageError(f"{kind.name} is watched in part only, so it cannot be written back")
        name = finalizer_supplier(kind)
        self.kind = kind
        self.finalizer = shortened(name)
        self.in_progress = shortened(name, IN_PROGRESS)
        self.add_func = add_func
        self.update_func = update_func
        self.delete_func = delete_func
        self.sync_func = sync_func
        self._own: dict[str, _Own] = {}  # until the watch has shown it

    def wrap(self, watcher: ResourceWatcher, *, sync_to_add: bool) -> None:
        """Call *watcher* in place of the functions for add, update and delete.

        With *sync_to_add*, its `add` is also called for objects that were handled before this
        process began. Without, `sync_func` stays as it is.
        """
        self.add_func = watcher.add
        self.update_func = watcher.update
        self.delete_func = watcher.delete
        if sync_to_add:
            self.sync_func = watcher.add

    async def add(self, new: Snapshot[Any]) -> None:
        """See `ResourceWatcher.add`."""
        self._catch_up(new)
        if new.is_going:
            await self._let_go(new)
        elif self.finalizer in self._finalizers(new):
            await _call(self.sync_func, new)
        else:
            await self._begin(new)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        """See `ResourceWatcher.update`."""
        if new.revision < old.revision:  # kept in another store by now
            self._own.pop(new.key, None)
        was_added = self.finalizer in self._finalizers(old) and _same_object(old, new)
        own = self._own.get(new.key)
        if own is not None and new.revision <= own.added:
            return
        self._catch_up(new)
        if new.is_going:
            await self._let_go(new)
        elif not was_added and self.finalizer not in self._finalizers(new):
            await self._begin(new)
        else:
            if self.finalizer not in self._finalizers(new):
                await self._mark(new, self._with_finalizer)  # somebody wrote over it
            if self.update_func is not None and new.kind.differs(old.value, new.value):
                await awaitable(self.update_func, old, new)

    async def delete(self, last: Snapshot[Any]) -> None:
        """See `ResourceWatcher.delete`: only one that went past its finalizer is news."""
        if self._holds(last) or await self._held_before(last):
            await self._clean_up_late(last)
        self._own.pop(last.key, None)

    async def missed(self, key: str, store: Store) -> None:
        """See `RecallingWatcher.missed`: what went past its finalizer is cleaned up."""
        states = await _history(key, store)
        if states:
            await self.delete(states[0])

    async def _begin(self, new: Snapshot[Any]) -> None:
        """Hold the object, have it added, and say on it that it was."""
        begun = await self._mark(new, self._with_in_progress)
        if begun is None or begun.is_going or self.finalizer in begun.metadata.finalizers:
            return  # what became of it is told next
        await _call(self.add_func, begun)
        kept = await self._mark(begun, self._with_finalizer)
        if kept is not None:  # it may be going by now, and takes no new finalizer
            self._own[new.key] = _Own(kept.revision, (self.finalizer,), begun.revision)

    async def _let_go(self, new: Snapshot[Any]) -> None:
        """Clean up before the object goes, unless that is done, and have it go."""
        if self._holds(new):
            await _call(self.delete_func, new)
        elif not self._is_left_over(new):
            return
        left = await release(new.store, new.key, self.finalizer, self.in_progress)
        stands = None if left is None else left.stored
        self._own[new.key] = _Own(math.inf if stands is None else stands.revision, ())

    def _is_left_over(self, new: Snapshot[Any]) -> bool:
        """Say whether nobody holds the object any more, and a cluster is not there to remove it."""
        in_cluster = isinstance(new.kind, KubeKind)
        return not in_cluster and self._is_newest(new) and not new.metadata.finalizers

    async def _clean_up_late(self, last: Snapshot[Any]) -> None:
        """Clean up after the object, where a delete marker proves that it is gone."""
        try:
            await last.store.get(last.key)
        except NotFoundError as gone:
            if gone.deleted_at is not None:
                await _call(self.delete_func, last)
                await last.store.delete(last.key, revision=gone.deleted_at, purge=True)

    async def _held_before(self, last: Snapshot[Any]) -> bool:
        """Say whether a gone object was held, and written over, since one was last let go."""
        if last.is_going or not self._is_newest(last):
            return False
        for state in await _history(last.key, last.store):
            if state.is_going or self._holds(state):
                return self._holds(state)
        return False

    async def _mark(
        self, snapshot: Snapshot[Any], change: Callable[[tuple[str, ...]], tuple[str, ...]]
    ) -> Snapshot[Any] | None:
        """Change the finalizers of the object, unless it is going, and return it as it is then.

        None where it is gone, or another has its name.
        """

        def found(stored: Stored | None) -> Snapshot[Any]:
            shown = None if stored is None else Snapshot(snapshot.kind, stored, snapshot.store)
            if shown is None or not _same_object(snapshot, shown):
                raise NotFoundError(f"{snapshot.key} is gone")
            return shown

        def changed(stored: Stored | None) -> bytes:
            current = found(stored)
            before = current.metadata.finalizers
            after = before if current.is_going else change(before)
            if after == before:
                return current.value
            document = documents.parse(current.value)
            return documents.render(documents.with_finalizers(document, after))

        store, key = snapshot.store, snapshot.key
        try:
            rewritten = await rewrite(store, key, changed, seen=snapshot.stored)
            marked = found(rewritten.stored)
        except NotFoundError:
            return None
        self._own[key] = _Own(marked.revision, marked.metadata.finalizers)
        return marked

    def _with_in_progress(self, finalizers: tuple[str, ...]) -> tuple[str, ...]:
        if self.finalizer in finalizers or self.in_progress in finalizers:
            return finalizers
        return (*finalizers, self.in_progress)

    def _with_finalizer(self, finalizers: tuple[str, ...]) -> tuple[str, ...]:
        others = (name for name in finalizers if name not in {self.finalizer, self.in_progress})
        return (*others, self.finalizer)

    def _holds(self, snapshot: Snapshot[Any]) -> bool:
        return not {self.finalizer, self.in_progress}.isdisjoint(self._finalizers(snapshot))

    def _finalizers(self, snapshot: Snapshot[Any]) -> tuple[str, ...]:
        """Return the object's finalizers, as shown here or as we have written them since."""
        if self._is_newest(snapshot):
            return snapshot.metadata.finalizers
        return self._own[snapshot.key].finalizers

    def _is_newest(self, snapshot: Snapshot[Any]) -> bool:
        """Say whether we have not written the object since."""
        own = self._own.get(snapshot.key)
        return own is None or own.revision <= snapshot.revision

    def _catch_up(self, new: Snapshot[Any]) -> None:
        """Forget what we wrote once it is shown, or is of an object that went."""
        own = self._own.get(new.key)
        if own is not None and (
            own.revision <= new.revision or not (own.finalizers or new.is_going)
        ):
            del self._own[new.key]


def _same_object(one: Snapshot[Any], other: Snapshot[Any]) -> bool:
    """Say whether both are the same object, which not every writer numbers."""
    return len({one.metadata.uid, other.metadata.uid} - {""}) <= 1


async def _history(key: str, store: Store) -> list[Snapshot[Any]]:
    """Return every valid state that the store still knows, the newest first."""
    states = [state for state in await store.history(key) if isinstance(state, Stored)]
    valid = (state for state in reversed(states) if store.kind.valid(state.value))
    return [Snapshot(store.kind, state, store) for state in valid]


async def _call(function: OnSnapshot | None, snapshot: Snapshot[Any]) -> None:
    if function is not None:
        await awaitable(function, snapshot)
