"""The link between an object and its external resource: its names, its state and its record.

The reconciler stores an intent before a creation and a result after it, in annotations of the
object. A result names the revision upon which its intent was written, so matching results with
intents needs no clock. If an intent has no result, the creation's outcome is unknown.

For objects in NATS, a record in a separate bucket holds the link as well: a client that replaces
the whole object removes its annotations, and must not cause a second external resource.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from natsctl.core.compare_and_set import read, rewrite
from natsctl.errors import (
    ConflictError,
    HandlerError,
    InvalidObjectError,
    NotFoundError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.model import documents
from natsctl.model.kinds import Kind, KvKind, kv
from natsctl.model.objects import DOMAIN, LINK, POLICIES
from natsctl.model.store import OpenStore, Store, Stored
from natsctl.model.times import time_in, time_text

FINALIZER_NAME = "natsctl.io/managed"
"""The finalizer that keeps a managed object until its external resource is deleted.

Seed: `FinalizerName`.
"""

KRATEO_FINALIZER_NAME = "finalizer.managedresource.krateo.io"

CREATE_PENDING = "external-create-pending"


class AnnotationNames(msgspec.Struct, frozen=True):
    """The finalizer of managed objects, and the domain of their annotations.

    `KRATEO` has the names of krateo's provider-runtime. A reconciler with one of the two sets of
    names also reads the other, and its next write of an object renames them.
    """

    domain: str = DOMAIN
    finalizer: str = FINALIZER_NAME

    @property
    def external_name(self) -> str:
        return f"{self.domain}/external-name"

    @property
    def create_pending(self) -> str:
        """The intent: when a creation began."""
        return f"{self.domain}/{CREATE_PENDING}"

    @property
    def create_succeeded(self) -> str:
        return f"{self.domain}/external-create-succeeded"

    @property
    def create_failed(self) -> str:
        return f"{self.domain}/external-create-failed"

    @property
    def adopted(self) -> str:
        return f"{self.domain}/external-adopted"

    @property
    def adopt(self) -> str:
        """The annotation that permits to take over a resource that natsctl didn't create."""
        return f"{self.domain}/adopt"

    @property
    def paused(self) -> str:
        return f"{self.domain}/paused"

    @property
    def management_policy(self) -> str:
        return f"{self.domain}/management-policy"

    @property
    def deletion_policy(self) -> str:
        return f"{self.domain}/deletion-policy"

    def qualified(self, names: Iterable[str]) -> list[str]:
        return [f"{self.domain}/{name}" for name in names]

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that are read, this domain first."""
        equivalent = {DOMAIN, KRATEO.domain} if self.domain in (DOMAIN, KRATEO.domain) else set()
        return (self.domain, *(equivalent - {self.domain}))

    @property
    def finalizers(self) -> frozenset[str]:
        """All finalizers that are equivalent to the one of these names."""
        equivalent = frozenset({FINALIZER_NAME, KRATEO_FINALIZER_NAME})
        return equivalent if self.finalizer in equivalent else frozenset({self.finalizer})

    def link(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return the annotations that link to the external resource, renamed to this domain.

        The link is read from the first domain that has one.
        """
        links = (self._read(annotations, domain, LINK) for domain in self.domains)
        return next((link for link in links if link), {})

    def policies(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return the annotations with which users set policies, renamed to this domain."""
        domains = reversed(self.domains)
        policies = (self._read(annotations, domain, POLICIES) for domain in domains)
        return {name: text for texts in policies for name, text in texts.items()}

    def migrated(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return all annotations, with the link renamed to this domain."""
        links = {f"{domain}/{word}" for domain in self.domains for word in LINK}
        others = {name: text for name, text in annotations.items() if name not in links}
        return {**others, **self.link(annotations)}

    def _read(
        self, annotations: Mapping[str, str], domain: str, words: tuple[str, ...]
    ) -> dict[str, str]:
        texts = ((word, annotations.get(f"{domain}/{word}")) for word in words)
        return {f"{self.domain}/{word}": text for word, text in texts if text is not None}


KRATEO = AnnotationNames("krateo.io", KRATEO_FINALIZER_NAME)
"""The names of krateo's provider-runtime."""


def controller_name(kind: str | Kind[Any]) -> str:
    """Return the recommended name of a controller of this kind (seed: `ControllerName`)."""
    return f"managed/{(kind if isinstance(kind, str) else kind.name).lower()}"


# ---- the link, as the annotations have it


class OtherCreationError(ConflictError):
    """Another object has the key now, or another creation has begun for the object."""


class Mark(msgspec.Struct, frozen=True):
    """An intent or a result: its time, and the revision upon which the intent was written.

    `intent` is None for annotations of krateo's provider-runtime, which have only times. A success
    and an adoption have the `name` of the resource. An intent and a failure have it only if the
    user didn't write it on the object.
    """

    time: datetime
    intent: int | None = None
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> "Mark":
        """Return the mark in an annotation; an unreadable time counts as the earliest time."""
        marked, _, name = text.partition(" name ")
        written, _, revision = marked.partition(" revision ")
        intent = int(revision) if revision.isdecimal() else None
        return cls(time_in(written) or datetime.min.replace(tzinfo=UTC), intent, name)

    def __str__(self) -> str:
        revision = "" if self.intent is None else f" revision {self.intent}"
        return f"{time_text(self.time)}{revision}{self.name and f' name {self.name}'}"

    def answers(self, intent: "Mark") -> bool:
        if intent.intent is None:
            return self.time >= intent.time
        return self.intent == intent.intent


class CreationLink(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The name of an object's external resource, and the state of its creation or adoption.

    The texts are those of the annotations; each but the name is that of a `Mark`.
    """

    external_name: str = ""
    pending: str = ""
    succeeded: str = ""
    failed: str = ""
    adopted: str = ""

    @classmethod
    def of(cls, annotations: Mapping[str, str], names: AnnotationNames) -> "CreationLink":
        texts = names.link(annotations)
        return cls(*(texts.get(name, "") for name in names.qualified(LINK)))

    def annotations(self, names: AnnotationNames) -> dict[str, str]:
        texts = msgspec.structs.astuple(self)
        return {name: text for name, text in zip(names.qualified(LINK), texts, strict=True) if text}

    def __bool__(self) -> bool:
        return self != CreationLink()

    @property
    def unknown(self) -> bool:
        """True if a creation has begun and its result is not stored."""
        intent, results = Mark.parse(self.pending), self._marks("succeeded", "failed")
        return bool(self.pending) and not any(mark.answers(intent) for mark in results)

    def owns(self, name: str) -> bool:
        """Return whether natsctl created this resource, may have created it, or adopted it.

        A mark without a name holds for every name.
        """
        marks = self._marks("succeeded", "adopted")
        return self.unknown or any(mark.name in ("", name) for mark in marks)

    def gave(self, name: str) -> bool:
        """Return whether the name comes from natsctl or the client, and not from the user."""
        return any(mark.name == name != "" for mark in self._marks("pending", "failed"))

    def age_s(self, now: datetime) -> float | None:
        """Return the seconds since a creation succeeded or may have succeeded, or None."""
        text = self.pending if self.unknown else self.succeeded
        return abs((now - Mark.parse(text).time).total_seconds()) if text else None

    def answers(self, other: "CreationLink") -> bool:
        """Return whether this link has the result of a creation that *other* has only begun."""
        return self.pending == other.pending and other.unknown and not self.unknown

    def contradicts(self, other: "CreationLink") -> bool:
        """Return whether this link may lead to another external resource than *other* does."""
        if self.unknown and self.pending != other.pending:
            return True
        return bool(self.external_name) and self.external_name != other.external_name

    def _marks(self, *fields: str) -> list[Mark]:
        return [Mark.parse(text) for field in fields if (text := getattr(self, field))]


def ended(
    annotations: Mapping[str, str],
    names: AnnotationNames,
    now: datetime,
    *,
    created: bool,
    name: str = "",
) -> dict[str, str]:
    """Return the annotations with the result of their intent; for *name* see `Mark`."""
    intent = Mark.parse(CreationLink.of(annotations, names).pending).intent
    key = names.create_succeeded if created else names.create_failed
    return {**annotations, key: str(Mark(now, intent, name))}


_LOST = (
    *(TimeoutError, StoreTimeoutError, HandlerError),
    *(ConnectionResetError, ConnectionAbortedError, BrokenPipeError),
)
"""Errors after which the other system may have done what was requested."""


def may_have_created(error: Exception) -> bool:
    """Return whether the resource may exist after this error of a creation: an answer may be lost.

    Libraries raise their own errors, whose causes are a timeout or a lost connection. An error
    raised `from None` has no cause. A time limit of a connect, such as `ConnectTimeout`, ends
    before anything is requested.
    """
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and all(cause is not seen for seen in causes):
        causes.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    names = [type(cause).__name__ for cause in causes]
    if not isinstance(error, _LOST) and any("Connect" in n and "Timeout" in n for n in names):
        return False
    return any(isinstance(cause, _LOST) for cause in causes)


# ---- the record of a link

PREFIX = "links"

RECORDS: KvKind[CreationLink] = kv(
    CreationLink, bucket="natsctl", keys=f"{PREFIX}.>", history=1, replicas=None
)
"""The link records, one for each managed object in NATS; see `record_key`."""


def record_key(bucket: str, key: str, names: AnnotationNames) -> str:
    """Return the key of an object's record, among the records of one domain of annotations."""
    domain = max(names.domains).replace(".", "_")
    return f"{PREFIX}.{domain}.{bucket}.{key}"


class Unstored(msgspec.Struct, frozen=True):
    """The result of a creation that could not be stored: the changes of the annotations.

    If `withdrawn`, the creation did not begin, and its intent may not be stored either.
    """

    pending: str
    annotations: dict[str, str | None]
    withdrawn: bool = False


class Memory(msgspec.Struct, omit_defaults=True):
    """What a process remembers of one object, by the event loop's clock.

    Args:
        link: the record of the link as it was last seen, at the revision `link_revision`: 0 if
            there was none, None if it was not read.
        replaced: the uid of an object in a cluster that a client replaced without its link, which
            is then in `link`.
        failures: the failed creations in a row.
        creation_waits: the object's revision after a failed creation, and the end of the wait.
        unstored: the result of a creation that could not be stored.
        deletion_at: the time at which the deletion of the resource was requested first.
        seen: the last creation within its grace period, and when it was seen first.
        diff: what differs at the resource, as it was logged last.
    """

    link: CreationLink = CreationLink()
    link_revision: int | None = None
    replaced: str = ""
    failures: int = 0
    creation_waits: tuple[int, float] | None = None
    unstored: Unstored | None = None
    deletion_at: float | None = None
    seen: tuple[str, float] | None = None
    diff: str = ""

    def see(self, revision: int, link: CreationLink) -> CreationLink:
        self.link_revision, self.link = revision, link
        return link

    def shifted(self, by_s: float) -> "Memory":
        """Return the memory with all times moved, so that a replay has the same time left."""
        waits, at, seen = self.creation_waits, self.deletion_at, self.seen
        return msgspec.structs.replace(
            self,
            creation_waits=None if waits is None else (waits[0], waits[1] + by_s),
            deletion_at=None if at is None else at + by_s,
            seen=None if seen is None else (seen[0], seen[1] + by_s),
        )


class Links(msgspec.Struct, eq=False):
    """Reads and writes the records of one bucket's objects.

    An object without a record may have had a link before it was replaced. Then the link comes from
    the newest earlier revision with a link that the bucket still has.
    """

    objects: Store
    bucket: str
    names: AnnotationNames
    open_records: OpenStore
    _records: Store | None = None

    async def read(self, key: str, memory: Memory) -> CreationLink:
        """Return the recorded link of the object, read at the stream's leader."""
        recorded = await self.recorded(key)
        if recorded is not None:
            return memory.see(recorded.revision, RECORDS.decode(recorded.value))
        memory.see(0, CreationLink())
        for state in reversed(await self.objects.history(key)):
            if not isinstance(state, Stored):
                break  # an object that was deleted before
            link = CreationLink.of(annotations_of(state.value), self.names)
            if link:  # a name that only its user wrote is the user's to take back
                return link if link.owns(link.external_name) else CreationLink()
        return CreationLink()

    async def recorded(self, key: str) -> Stored | None:
        return await read(await self._store(), record_key(self.bucket, key, self.names))

    async def write(self, key: str, link: CreationLink, memory: Memory) -> None:
        """Record the link, upon exactly the record that was last seen.

        Raises `OtherCreationError` if another process has recorded another creation since.
        """
        if memory.link_revision is None:
            await self.read(key, memory)
        if memory.link == link:
            return
        try:
            await self._put(key, link, memory)
        except ConflictError as error:
            newest = await self.recorded(key)
            recorded = CreationLink()
            if newest is not None:
                recorded = memory.see(newest.revision, RECORDS.decode(newest.value))
            if recorded.pending != link.pending:
                raise OtherCreationError(f"another creation was begun for {key}") from error
            if newest is None:
                memory.see(0, recorded)
            if recorded != link:
                await self._put(key, link, memory)

    async def _put(self, key: str, link: CreationLink, memory: Memory) -> None:
        store, name = await self._store(), record_key(self.bucket, key, self.names)
        value, revision = msgspec.json.encode(link), memory.link_revision
        if revision:
            stored = await store.update(name, value, revision=revision)
        else:
            stored = await store.create(name, value)
        memory.see(stored.revision, link)

    async def forget(self, key: str) -> None:
        """Remove the record, because the object will be removed."""
        with suppress(NotFoundError):
            record = record_key(self.bucket, key, self.names)
            await (await self._store()).delete(record, purge=True)

    async def _store(self) -> Store:
        if self._records is None:
            self._records = await self.open_records(RECORDS)
        return self._records


# ---- what a person finds out about a resource


def unresolved(annotations: Mapping[str, str]) -> AnnotationNames | None:
    """Return the names of the annotations that hold a creation with an unknown result.

    The annotations may have any domain. Returns None if there is no such creation.
    """
    for domain in domains_of(annotations):
        names = AnnotationNames(domain)
        if names.create_pending in annotations and CreationLink.of(annotations, names).unknown:
            return names
    return None


async def resolve(store: Store, key: str, *, created: bool, external_name: str = "") -> Stored:
    """Store the result of the object's creation, and the name of the resource, if given.

    The reconciler then continues by itself. Raises `NotFoundError` if the object does not exist,
    `UsageError` if it has no creation with an unknown result, and `ConflictError` after ten
    conflicts in a row.
    """

    def change(annotations: dict[str, str]) -> dict[str, str | None]:
        names = unresolved(annotations)
        if names is None:
            raise UsageError(f"{key} of {store.kind.name} has no creation with an unknown result")
        resolved = ended(annotations, names, datetime.now(UTC), created=created)
        if external_name:
            resolved[names.external_name] = external_name
        return changes(annotations, resolved)

    return await _annotate(store, key, change)


async def permit_adoption(store: Store, key: str) -> None:
    """Let the reconciler take over an external resource that natsctl didn't create.

    Raises `NotFoundError` if the object does not exist, and `ConflictError` after ten conflicts in
    a row.
    """
    await _annotate(store, key, lambda _: {AnnotationNames().adopt: "true"})


async def unlink(store: Store, key: str) -> None:
    """Remove the link to the external resource from the object, if the object exists.

    The object then records that nothing was created, so the next reconciliation creates.
    """

    def change(annotations: dict[str, str]) -> dict[str, str | None]:
        changed: dict[str, str | None] = {}
        for domain in domains_of(annotations):
            names = AnnotationNames(domain)
            changed |= dict.fromkeys(names.qualified(LINK))
            changed[names.create_failed] = str(Mark(datetime.now(UTC)))
        return changed

    if await read(store, key) is not None:
        await _annotate(store, key, change)


async def _annotate(
    store: Store, key: str, change: Callable[[dict[str, str]], dict[str, str | None]]
) -> Stored:
    def value(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{store.kind.name} has no {key}")
        return annotated(current.value, change(annotations_of(current.value)))

    return (await rewrite(store, key, value, seen=await read(store, key))).stored


def domains_of(annotations: Mapping[str, str]) -> list[str]:
    """Return the domains in which annotations hold a link."""
    parts = (name.rpartition("/") for name in annotations)
    return sorted({domain for domain, _, word in parts if domain and word in LINK})


def annotations_of(value: bytes) -> dict[str, str]:
    """Return the annotations in a stored value; none if the value is not an object."""
    try:
        annotations = documents.annotations_of(documents.parse(value))
    except InvalidObjectError:
        return {}
    return {name: text for name, text in annotations.items() if isinstance(text, str)}


def annotated(value: bytes, changed: Mapping[str, str | None]) -> bytes:
    """Return a stored value with these annotations; None removes an annotation."""
    if not changed:
        return value
    document = documents.parse(value)
    metadata = documents.metadata_of(document)
    patched = documents.merge_patch(metadata, {"annotations": dict(changed)})
    return documents.render({**document, "metadata": patched})


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the annotations that differ; None is one that was removed."""
    removed: dict[str, str | None] = dict.fromkeys(before.keys() - after.keys())
    return {**removed, **{name: text for name, text in after.items() if before.get(name) != text}}
