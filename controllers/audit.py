"""Audit: a trail of who changed what in buckets and in a cluster, in the bucket `audit`.

Every change of an object is an entry under its bucket or kind and its key: the revisions before and
after, and which fields differ, but never what they say. The last 64 entries of an object are kept,
as messages of the JetStream stream `KV_audit`. An entry is never written twice, however often this
starts; what changed while it was away is told as one entry when it is back. Who it was is what a
cluster calls the managers of the fields; a bucket does not know.

Run it:       AUDIT_BUCKETS=greetings,routes natsctl run --controller controllers.audit:Audit
A cluster's:  AUDIT_KINDS=v1/ConfigMap,apps/v1/Deployment natsctl run -c controllers.audit:Audit
Look:         natsctl history audit greetings.shop
Follow:       natsctl watch audit
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
    """What happened to an object, and when that was seen (RFC 3339).

    `changed` names the fields that differ; None where it changed while nobody looked. `by` names
    who set any of them, where that is known.
    """

    action: Literal["created", "updated", "deleted"]
    seen: str
    old_revision: int | None = None
    new_revision: int | None = None
    changed: tuple[str, ...] | None = None
    by: tuple[str, ...] = ()


TRAIL = kv(Entry, bucket="audit", history=64)


class Audit(InformerController):
    """Keeps the trail of some kinds, by default of what AUDIT_BUCKETS and AUDIT_KINDS name."""

    def __init__(self, *kinds: Kind[Any]) -> None:
        super().__init__(retry_policy=always_retry, retry_dequeue_policy=lambda *_: False)
        for kind in kinds or named(os.environ):
            self.add_informer(kind)
            self.add_watcher(Auditor(self, kind), kind)

    async def start(self) -> None:
        """Find the trail."""
        self._trail = await self.open(TRAIL)

    async def note(self, key: str, entry_after: Callable[[Entry | None], Entry | None]) -> None:
        """Write the entry that follows the last one under this key, if any does."""
        try:
            found = await self._trail.get(key)
        except NotFoundError:
            if (first := entry_after(None)) is not None:
                await self._trail.create(key, TRAIL.encode(None, first))
            return
        entry = entry_after(TRAIL.decode(found.value))
        if entry is not None:
            await self._trail.update(key, TRAIL.encode(None, entry), revision=found.revision)


class Auditor:
    """Says what becomes of objects of one kind."""

    def __init__(self, audit: Audit, kind: Kind[Any]) -> None:
        self._audit = audit
        self._place = kind.bucket if isinstance(kind, KvKind) else kind.name

    async def add(self, new: Snapshot[Any]) -> None:
        """Note an object that was created, or changed while nobody looked."""

        def entry(last: Entry | None) -> Entry | None:
            if last is None or last.new_revision is None:
                changed, by = fields(b"{}", new.value), managers(b"{}", new.value)
                return Entry("created", now(), None, new.revision, changed, by)
            if last.new_revision == new.revision:
                return None
            return Entry("updated", now(), last.new_revision, new.revision)

        await self._audit.note(self._named(new.key), entry)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        """Note a change."""

        def entry(last: Entry | None) -> Entry | None:
            if last is not None and last.new_revision == new.revision:
                return None
            changed, by = fields(old.value, new.value), managers(old.value, new.value)
            return Entry("updated", now(), old.revision, new.revision, changed, by)

        await self._audit.note(self._named(new.key), entry)

    async def delete(self, last: Snapshot[Any]) -> None:
        """Note that an object went."""

        def entry(known: Entry | None) -> Entry | None:
            return Entry("deleted", now(), last.revision) if known is None else _deletion(known)

        await self._audit.note(self._named(last.key), entry)

    async def missed(self, key: str, _store: object) -> None:
        """Note that an object went while nobody looked."""
        await self._audit.note(self._named(key), _deletion)

    def _named(self, key: str) -> str:
        """Return the entries' key; what a bucket's key cannot hold is written as `=` and hex."""
        escaped = quote(key, safe="/.").replace("%", "=").replace("~", "=7E")
        return f"{self._place}.{escaped}"


def named(environ: Mapping[str, str]) -> list[Kind[Any]]:
    """Return the kinds that the environment names; by default the bucket `greetings`."""
    kinds = [each.strip().rpartition("/") for each in environ.get("AUDIT_KINDS", "").split(",")]
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
    """Return the time of day."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def fields(old: bytes, new: bytes) -> tuple[str, ...]:
    """Return the names of the fields that differ, `.` where the values are no JSON objects."""
    return tuple(sorted(set(_differing(_parsed(old), _parsed(new), ())) - BOOKKEEPING))


def managers(old: bytes, new: bytes) -> tuple[str, ...]:
    """Return who set a field between the two, as far as the object tells."""
    before, after = _said(old), _said(new)
    return tuple(sorted({str(each.get("manager")) for each in after if each not in before}))


def _said(value: bytes) -> list[dict[str, object]]:
    document = _parsed(value)
    metadata = document.get("metadata") if isinstance(document, dict) else None
    said = metadata.get("managedFields") if isinstance(metadata, dict) else None
    return [each for each in said if isinstance(each, dict)] if isinstance(said, list) else []


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
