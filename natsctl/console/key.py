"""Answers for the view of one key: the reasons of its state, its objects and its revisions."""

import asyncio
import json
import re
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from natsctl.console.answers import (
    Answer,
    Fields,
    answer,
    masked_document,
    shown_differences,
    shown_value,
)
from natsctl.console.keys import Keys
from natsctl.daemon.messages import KeyExplanation, Verb
from natsctl.errors import (
    DECODE_ERRORS,
    ConflictError,
    InvalidObjectError,
    NatsctlError,
    NoDaemonError,
    NotFoundError,
    StoreError,
    UsageError,
)
from natsctl.jetstream.bucket import Bucket, Message
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.store import BucketStore
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document
from natsctl.model.keys import check_key
from natsctl.model.plans import Difference
from natsctl.model.reports import Branch
from natsctl.model.store import Stored
from natsctl.operate.buckets import message_at, published_schemas
from natsctl.operate.faults import faults, schema_for
from natsctl.operate.fleet import Fleet
from natsctl.operate.objects import (
    Name,
    desired,
    object_in,
    replaced,
    restored_value,
    with_reserved,
)
from natsctl.operate.pauses import Identity, identity_on
from natsctl.operate.statuses import (
    Partial,
    Problem,
    described_by_nats,
    known_controllers,
    missing,
    problem_of,
)
from natsctl.telemetry.hiding import MASK

FAULTS_MAX = 20
_NOT_ASCII = re.compile("[^\x00-\x7f]+")


class Preview(msgspec.Struct, frozen=True):
    """What a change would change, and why it's refused; it's stored if nothing is."""

    differences: list[Difference]
    faults: list[str]


class NextValue(msgspec.Struct, frozen=True):
    """The next value of an object; *before* is None if the object doesn't exist now."""

    store: BucketStore
    key: str
    before: Message | None
    value: bytes

    async def preview(self, connection: Connection) -> Preview:
        after = Message(self.key, 0, self.value, None, "")
        differences = shown_differences(self.store, self.before, after)
        schema = None
        with suppress(StoreError):  # without the permission to read them, the daemon is the judge
            schemas = await published_schemas(connection, self.store.kind.name)
            schema = schema_for(schemas, self.key)
        document = object_in(self.value)
        found = faults(schema.schema, document) if schema and document else []
        refused = [str(one) for one in found if one.first not in ("status", "metadata")]
        return Preview(differences, refused[:FAULTS_MAX])

    async def store_it(self) -> int:
        if self.before is None:
            return (await self.store.create(self.key, self.value)).revision
        revision = self.before.revision
        return (await self.store.update(self.key, self.value, revision=revision)).revision


async def draft(connection: Connection, bucket: str, key: str) -> Fields:
    """Return an object to edit, without secrets, status and bookkeeping, and its revision."""
    message = await Bucket(connection, bucket).last(check_key(key))
    document = _document(message)
    shown = _compact(masked_document(desired(document)))
    text = msgspec.json.format(exact_json.encode(shown), indent=2).decode()
    return answer(text=text, revision=message.revision)


async def edited(connection: Connection, name: Name, text: str, revision: int) -> NextValue:
    """Return the change that an edited draft makes; a masked secret keeps its value."""
    bucket = Bucket(connection, name.bucket)
    message = await bucket.last(name.key)
    before = _document(message)
    if message.revision != revision:
        raise ConflictError(
            f"{name} changed since you opened it: it has revision {message.revision} now"
        )
    try:
        new = exact_json.decode(text.encode())
    except DECODE_ERRORS as error:
        raise UsageError(f"this is not JSON: {error}") from error
    if not isinstance(new, dict):
        raise UsageError("an object is a JSON object with a spec")
    whole = desired(before)
    unmasked = _unmasked(new, masked_document(whole), whole, "")
    current = Stored(name.key, message.revision, message.value)
    value = replaced(current, with_reserved(unmasked, before))
    if value == message.value:
        raise UsageError("nothing would change")
    return NextValue(BucketStore(bucket), name.key, message, value)


async def restored(connection: Connection, name: Name, revision: int) -> NextValue:
    """Return the change that restores an earlier revision: spec, labels and annotations."""
    store = BucketStore(Bucket(connection, name.bucket))
    messages = await store.messages(name.key)
    earlier = message_at(name.bucket, messages, name.key, revision)
    newest = None if messages[-1].marker else messages[-1]
    current = Stored(name.key, newest.revision, newest.value) if newest else None
    return NextValue(store, name.key, newest, restored_value(name, current, earlier))


def _compact(document: Document) -> Document:
    metadata = {name: field for name, field in documents.metadata_of(document).items() if field}
    others = documents.without(document, "metadata")
    return {"metadata": metadata, **others} if metadata else others


def _document(message: Message) -> Document:
    document = None if message.marker else object_in(message.value)
    if document is None:
        raise UsageError(f"{message.key} is not an object with a spec: use natsctl put")
    return document


def _unmasked(new: Any, masked: Any, whole: Any, path: str) -> Any:
    if new == masked:
        return whole
    if isinstance(new, dict):
        shown = masked if isinstance(masked, dict) else {}
        known = whole if isinstance(whole, dict) else {}
        return {
            name: _unmasked(inner, shown.get(name), known.get(name), f"{path}.{name}")
            for name, inner in new.items()
        }
    if isinstance(new, list):
        same = isinstance(masked, list) and len(masked) == len(new)
        pairs = zip(masked, whole, strict=True) if same else ((None, None) for _ in new)
        return [
            _unmasked(inner, *pair, f"{path}[{index}]")
            for index, (inner, pair) in enumerate(zip(new, pairs, strict=True))
        ]
    if isinstance(new, str) and MASK in new:
        raise UsageError(
            f"{path.lstrip('.')} has {MASK}, which hides a secret: write the whole new value, or "
            "use natsctl edit"
        )
    return new


T = TypeVar("T")

DIFFERENCES_MAX = 500
CHANGED_MAX = 5  # fields that a revision names
COMPARED_MAX = 256 * 1024  # bytes of a value whose changed fields a revision names


class KeyView(Answer, frozen=True, kw_only=True):
    """Everything about one key; `errors` states why a part is None, and `off` why an action is."""

    controller: str
    key: str
    bucket: str
    explain: list[KeyExplanation] | None = None
    tree: Branch | None = None
    object: Fields | None = None
    revisions: list[Fields] | None = None
    errors: dict[str, Problem] = msgspec.field(default_factory=dict)
    off: dict[str, str] = msgspec.field(default_factory=dict)


class KeyViews:
    """The views of keys of one console."""

    def __init__(self, fleet: Fleet, keys: Keys) -> None:
        self._connection = fleet.connection
        self._fleet = fleet
        self._keys = keys
        self._identity: Identity | None = None

    async def identity(self) -> Identity:
        if self._identity is None:
            self._identity = await identity_on(self._connection)
        return self._identity

    async def view(self, controller: str, bucket: str, key: str) -> KeyView:
        check_key(key)
        if controller:
            view = await self._of_controller(controller, key, bucket)
        else:
            view = await self._stored(bucket, key, {})
            if not view.revisions and "revisions" not in view.errors:
                raise NotFoundError(f"{bucket} has no {key}, and no revision of it")
        return replace(view, off=_off(view, await self.identity()))

    async def _of_controller(self, controller: str, key: str, bucket: str) -> KeyView:
        try:
            daemons = await self._fleet.daemons()
            daemons.controller(controller)
        except (NoDaemonError, NotFoundError) as error:
            return await self._without_daemon(controller, key, bucket, error)
        errors: dict[str, Problem] = {}
        explained, tree, object_bucket = await asyncio.gather(
            _part("explain", daemons.explain(controller, key), errors),
            _part("tree", daemons.tree(controller, key), errors),
            _part("object", self._keys.bucket_of(controller, bucket), errors),
        )
        if object_bucket is None and tree is not None and tree.bucket:
            object_bucket = tree.bucket
            errors.pop("object", None)
        view = await self._stored(object_bucket, key, errors)
        partial: Partial | None = None
        if explained is not None:
            known = [one for one in explained if one.present or one.past]
            if view.object is None and not known:
                raise NotFoundError(f"{controller} has no {key}, and no sync or event of it")
            if not any(one.here and one.member for one in explained):
                ids = {one.daemon.id for one in explained}
                partial = missing(daemons.running(controller), ids)
            explained = known or explained
        return replace(view, controller=controller, explain=explained, tree=tree, partial=partial)

    async def _without_daemon(
        self, controller: str, key: str, bucket: str, error: NatsctlError
    ) -> KeyView:
        """Return what NATS has of the key; raises *error* if the controller doesn't exist."""
        traces = (await known_controllers(self._connection)).get(controller)
        if traces is None:
            raise error
        known, sources = {controller: traces}, traces.sources
        explanations = await described_by_nats(
            self._connection, known, key, lambda at: bucket in ("", at.bucket), controller
        )
        place = bucket or next((source.bucket for source in sources if source.bucket), "")
        problem = Problem("no_daemon", f"no daemon runs {controller}")
        view = await self._stored(place, key, {"tree": problem, "explain": problem})
        if view.object is None and not explanations:
            raise NotFoundError(f"{controller} has no {key}, and no sync or event of it")
        return replace(view, controller=controller, explain=[*explanations] or None)

    async def recording(self, controller: str, key: str) -> Fields:
        """Return the last recording, as JSON in which `encoded` finds nothing to escape."""
        daemons = await self._fleet.daemons()
        text = await daemons.recording(controller, check_key(key))
        lines = msgspec.json.format(text, indent=1).decode() + "\n"
        return answer(text=_NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], lines))

    async def manifest(self, controller: str, kind: str, key: str) -> Fields:
        daemons = await self._fleet.daemons()
        return answer(text=(await daemons.manifest(controller, kind, key)).text)

    async def comparison(
        self, controller: str, bucket: str, key: str, first: int | None, second: int | None
    ) -> Fields:
        object_bucket = await self._keys.bucket_of(controller, bucket) if controller else bucket
        store = BucketStore(Bucket(self._connection, object_bucket))
        messages = await store.messages(check_key(key))
        if not messages:
            raise NotFoundError(f"{object_bucket} has no {key}, and no revision of it")
        after = message_at(object_bucket, messages, key, second or messages[-1].revision)
        earlier = [message for message in messages if message.revision < after.revision]
        before = earlier[-1] if earlier else None
        if first is not None:
            before = message_at(object_bucket, messages, key, first)
        differences = shown_differences(store, before, after)
        revisions = {"from": 0 if before is None else before.revision, "to": after.revision}
        more = len(differences[DIFFERENCES_MAX:])
        return answer(**revisions, differences=differences[:DIFFERENCES_MAX], more=more)

    async def _stored(self, bucket: str | None, key: str, errors: dict[str, Problem]) -> KeyView:
        revisions: list[Fields] | None = None
        shown: Fields | None = None
        if bucket:
            store = BucketStore(Bucket(self._connection, bucket))
            messages = await _part("revisions", store.messages(key), errors)
            if messages is None:
                errors["object"] = errors["revisions"]
            elif not messages or messages[-1].marker:
                errors["object"] = Problem("not_found", f"{bucket} has no {key}")
            else:
                shown = shown_value(messages[-1])
            if messages is not None:
                revisions, before = [], None
                for message in messages:
                    revisions.append(_shown_revision(store, before, message))
                    before = message
        elif "object" not in errors:
            in_cluster = Problem("not_found", "the object is in a cluster: see kubectl get")
            errors |= {"object": in_cluster, "revisions": in_cluster}
        return KeyView(
            controller="",
            key=key,
            bucket=bucket or "",
            object=shown,
            revisions=revisions,
            errors=errors,
        )


def _off(view: KeyView, identity: Identity) -> dict[str, str]:
    off: dict[str, str] = {}
    verbs = {"resync": Verb.RESYNC, "plan": Verb.PLAN, "record": Verb.RECORD}
    verbs["recording"] = Verb.RECORDING
    explanations = view.explain or []
    for action, verb in verbs.items() if view.controller else ():
        subject = verb.subject(view.controller)
        if refused := identity.refusal(subject):
            off[action] = refused
        elif not any(explanation.daemon.pid for explanation in explanations):
            off[action] = f"no daemon of {view.controller} answers"
    if any(explanation.paused for explanation in explanations):
        off.setdefault("resync", "it is paused: resume it first")
    written = f"$KV.{view.bucket}.{view.key}"
    kind = None if view.object is None else view.object["kind"]
    for action in ("pause", "resume", "edit", "rollback"):
        if not view.bucket:
            off[action] = "it is in a cluster: use kubectl"
        elif refused := identity.refusal(written):
            off[action] = refused
        elif kind is None and action in {"pause", "edit"}:
            off[action] = "it does not exist"
        elif kind != "json" and action == "edit":
            off[action] = "its value is not JSON"
    return off


async def _part(name: str, work: Awaitable[T], errors: dict[str, Problem]) -> T | None:
    try:
        return await work
    except (NatsctlError, TimeoutError) as error:
        errors[name] = problem_of(error)
        return None


def _shown_revision(store: BucketStore, before: Message | None, message: Message) -> Fields:
    is_gone, size, changed = message.marker is not None, len(message.value), list[str]()
    if before is None or before.marker or is_gone:
        pass
    elif max(size, len(before.value)) <= COMPARED_MAX:
        with suppress(InvalidObjectError):
            differences = shown_differences(store, before, message)
            changed = [difference.path for difference in differences[:CHANGED_MAX]]
    return {
        "revision": message.revision,
        "created": message.created,
        "deleted": is_gone,
        "bytes": size,
        "changed": changed,
    }
