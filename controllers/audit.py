"""Audit: records each change of objects in buckets and in a cluster in the bucket `audit`.

Each change is one entry under the bucket or kind and the key of the object. The entry has the
revisions before and after and the names of the changed fields, but no values. The bucket keeps the
last 64 entries of each object. An entry is written once, however often the controller starts. All
changes of an object while no controller ran are one entry. In a cluster the entry names the field
managers that made the change; a bucket does not know its writers.

Run it:       AUDIT_BUCKETS=greetings,routes natsctl run --controller controllers.audit:Audit
A cluster:    AUDIT_KINDS=v1/ConfigMap,apps/v1/Deployment natsctl run -c controllers.audit:Audit
Look:         natsctl history audit greetings.shop
Follow:       natsctl get -w audit
"""

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from natsctl import (
    InformerController,
    Kind,
    KvKind,
    NotFoundError,
    Snapshot,
    always_retry,
    kube,
    kv,
)

MANAGERS = "metadata.managedFields"
BOOKKEEPING = {"metadata.generation", "metadata.resourceVersion", MANAGERS}


class Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One change of an object, and the time at which it was observed (RFC 3339).

    `changed` names the changed fields; None if the object changed while no controller ran. `by`
    names the field managers that set them, as far as the object names them.
    """

    action: Literal["created", "updated", "deleted"]
    seen: str
    old_revision: int | None = None
    new_revision: int | None = None
    changed: tuple[str, ...] | None = None
    by: tuple[str, ...] = ()


TRAIL = kv(Entry, bucket="audit", history=64)


class Audit(InformerController):
    """Records the changes of some kinds, by default those of AUDIT_BUCKETS and AUDIT_KINDS."""

    def __init__(self, *kinds: Kind[Any]) -> None:
        super().__init__(retry_policy=always_retry, retry_dequeue_policy=lambda *_: False)
        for kind in kinds or audited_kinds(os.environ):
            self.add_informer(kind)
            self.add_watcher(Auditor(self, kind), kind)

    async def start(self) -> None:
        """Open the bucket of entries."""
        self._trail = await self.open(TRAIL)

    async def record(self, key: str, entry_after: Callable[[Entry | None], Entry | None]) -> None:
        """Write the entry that *entry_after* returns for the last entry of the key, if any."""
        try:
            last = await self._trail.get(key)
        except NotFoundError:
            if (first := entry_after(None)) is not None:
                await self._trail.create(key, TRAIL.encode(None, first))
            return
        entry = entry_after(TRAIL.decode(last.value))
        if entry is not None:
            await self._trail.update(key, TRAIL.encode(None, entry), revision=last.revision)


class Auditor:
    """Records the changes of the objects of one kind."""

    def __init__(self, audit: Audit, kind: Kind[Any]) -> None:
        self._audit = audit
        self._place = kind.bucket if isinstance(kind, KvKind) else kind.name

    async def add(self, new: Snapshot[Any]) -> None:
        """Record an object that was created, or that changed while no controller ran."""

        def entry(last: Entry | None) -> Entry | None:
            if last is None or last.new_revision is None:
                changed, manager_names = fields(b"{}", new.value), managers(b"{}", new.value)
                return Entry("created", now(), None, new.revision, changed, manager_names)
            if last.new_revision == new.revision:
                return None
            return Entry("updated", now(), last.new_revision, new.revision)

        await self._audit.record(self._entry_key(new.key), entry)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        """Record a change."""

        def entry(last: Entry | None) -> Entry | None:
            if last is not None and last.new_revision == new.revision:
                return None
            changed, manager_names = fields(old.value, new.value), managers(old.value, new.value)
            return Entry("updated", now(), old.revision, new.revision, changed, manager_names)

        await self._audit.record(self._entry_key(new.key), entry)

    async def delete(self, last: Snapshot[Any]) -> None:
        """Record a deletion."""

        def entry(known: Entry | None) -> Entry | None:
            return Entry("deleted", now(), last.revision) if known is None else _deletion(known)

        await self._audit.record(self._entry_key(last.key), entry)

    async def missed(self, key: str, _store: object) -> None:
        """Record a deletion that happened while no controller ran."""
        await self._audit.record(self._entry_key(key), _deletion)

    def _entry_key(self, key: str) -> str:
        """Return the key of the entries; illegal characters become `=` and two hex digits."""
        escaped = quote(key, safe="/.").replace("%", "=").replace("~", "=7E")
        return f"{self._place}.{escaped}"


def audited_kinds(environ: Mapping[str, str]) -> list[Kind[Any]]:
    """Return the kinds of AUDIT_BUCKETS and AUDIT_KINDS; by default the bucket `greetings`."""
    kinds = [name.strip().rpartition("/") for name in environ.get("AUDIT_KINDS", "").split(",")]
    buckets = environ.get("AUDIT_BUCKETS", "" if any(kinds[0]) else "greetings").split(",")
    return [
        *(kv(bytes, bucket=name.strip()) for name in buckets if name.strip()),
        *(kube(version, kind, managed_fields=True) for version, _, kind in kinds if kind),
    ]


def _deletion(last: Entry | None) -> Entry | None:
    if last is None or last.new_revision is None:
        return None
    return Entry("deleted", now(), last.new_revision)


def now() -> str:
    """Return the current time (RFC 3339)."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def fields(old: bytes, new: bytes) -> tuple[str, ...]:
    """Return the names of the fields that differ; `.` if the values are not JSON objects."""
    return tuple(sorted(set(_differing(_parsed(old), _parsed(new), ())) - BOOKKEEPING))


def managers(old: bytes, new: bytes) -> tuple[str, ...]:
    """Return the field managers that set a field between the two states."""
    before, after = _managed_fields(old), _managed_fields(new)
    return tuple(sorted({str(entry.get("manager")) for entry in after if entry not in before}))


def _managed_fields(value: bytes) -> list[dict[str, object]]:
    document = _parsed(value)
    metadata = document.get("metadata") if isinstance(document, dict) else None
    entries = metadata.get("managedFields") if isinstance(metadata, dict) else None
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]


def _differing(old: object, new: object, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old.keys() | new.keys():
            yield from _differing(old.get(name), new.get(name), (*path, str(name)))
    elif old != new:
        yield ".".join(path) or "."


def _parsed(value: bytes) -> object:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return value
