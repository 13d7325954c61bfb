"""Controllers whose decisions a service in any language makes.

natsctl watches, queues, retries, owns and collects, as for any `Controller`. The decision is one
request over NATS, as Metacontroller's is one over HTTP: the object and its children go out, the
desired children come back. So the service needs no watch, no cache and no API of natsctl, only a
NATS client that answers requests.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar
from urllib.parse import parse_qs

import msgspec

from natsctl.controller.controller import Controller, finalized
from natsctl.controller.kube_secondary import KubeSecondary
from natsctl.controller.owned import Secondary
from natsctl.controller.slots import STATUSES, only_primary, primary, secondary, slots
from natsctl.core.readers import Primary
from natsctl.core.sync import outside
from natsctl.errors import (
    HookError,
    InvalidKeyError,
    InvalidObjectError,
    PermanentError,
    StoreError,
    StoreTimeoutError,
    TooLargeError,
    UsageError,
    is_delay,
)
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.keys import legal
from natsctl.model.kinds import Kind, KvKind, kv
from natsctl.model.manifests import KubeKind, kube
from natsctl.model.objects import DOMAIN, Object
from natsctl.model.schemas.kind_schema import json_schema
from natsctl.model.store import Requester
from natsctl.telemetry.tracing import trace_headers

VERSION = 1  # of request and answer
SCHEME = "hook:"  # what a controller that's all options is called where others have a class
ROUNDS_MAX = 8  # requests of one sync that ask for more reads
KNOWN_MAX = 10_000  # keys whose reads are remembered, so that most syncs need one request
KUBE = "kube:"

AnyKind = KvKind[Any] | KubeKind[Any]
Children = dict[str, dict[str, Document]]
"""Objects by slot (a bucket, or `v1/ConfigMap`) and key."""


class HookRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What natsctl asks a hook, once per sync.

    Attributes:
        version: the version of this format.
        controller: the controller's name.
        key: the key that is synced.
        reason: why it's synced, for logs. The answer mustn't depend on it.
        finalizing: whether the object was deleted and the hook has to clean up.
        object: the object as stored; its last state if it was deleted.
        children: the objects that the key owns, by slot and key. A slot is the name of a bucket, or
            `v1/ConfigMap` for a cluster, whose keys are `namespace/name`.
        reads: the objects that the last answer asked for; null for one that doesn't exist.
    """

    version: int = VERSION
    controller: str
    key: str
    reason: str
    finalizing: bool
    object: Document
    children: Children
    reads: dict[str, Document | None]


class HookAnswer(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What a hook answers: the desired state, or an error.

    Attributes:
        children: the desired children, by slot and key. Those that differ are written, and those
            that are missing are deleted. A slot that's not named stays as it is.
        status: fields to merge into the object's status; null removes a field.
        requeue_after: sync the key again after so many seconds.
        reads: other objects that the decision depends on, as `BUCKET/KEY`, or
            `v1/ConfigMap/NAMESPACE/NAME`. The hook is asked again with them, and the key is synced
            when one changes.
        error: why there's no answer. The key is retried with backoff.
        permanent: with an error: don't retry until the object changes.
        version: the version of this format.
    """

    children: Children = {}
    status: dict[str, Any] = {}
    requeue_after: float | None = None
    reads: tuple[str, ...] = ()
    error: str = ""
    permanent: bool = False
    version: int = VERSION


class HookController(Controller):
    """Asks a service what a primary's children should be, and makes them so.

    Declare `primary` and `secondary` slots as in every controller, and name the subject:

        class Shops(HookController):
            hook = "shops.sync"
            shops = primary(untyped("shops"))
            routes = secondary(untyped("routes"))

    Options beside those of `Controller`:

    - `hook`: the subject to which requests go.
    - `hook_timeout_s`: how long the service may take for one answer.
    - `hook_finalize`: whether a deleted object stays until the hook was asked with `finalizing`.
    - `hook_reads`: kinds that answers may ask to read.
    """

    hook: str = ""
    hook_timeout_s: float = 10.0
    hook_finalize: bool = False
    hook_reads: Sequence[Kind[Any]] = ()

    requests: Requester | None = None
    """What carries the requests; by default, the connection to NATS."""

    path: ClassVar[str] = ""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ...]] = {}  # the reads of each key's last answer
        if not legal(self.hook) or any(wild in self.hook for wild in "*>"):
            raise UsageError(f"{type(self).__name__}.hook: {self.hook!r} isn't a subject to ask")
        if not is_delay(self.hook_timeout_s) or self.hook_timeout_s == 0:
            raise UsageError(f"hook_timeout_s: {self.hook_timeout_s!r} isn't a time in seconds")
        self._readable = {slot_name(kind): kind for kind in self.hook_reads}
        roles = (Secondary, KubeSecondary)
        owned = [slot for slot in slots(type(self)) if slot.role in roles]
        owned = [slot for slot in owned if not slot.name.endswith(STATUSES)]
        self._names = {slot_name(slot.kind): slot.name for slot in owned}
        if len(self._names) < len(owned):
            raise UsageError(f"{type(self).__name__}: an answer can't tell slots of one kind apart")

    async def sync_handler(self, key: str) -> float | None:
        objects = self._primary
        if self.hook_finalize:
            finalizer = f"{DOMAIN}/hook-{self.name}"
            return await finalized(objects, key, finalizer, apply=self._decide, cleanup=self._end)
        found = objects.get(key)
        if found is None:
            self._known.pop(key, None)
            return None
        return await self._decide(key, found)

    @property
    def _primary(self) -> Primary[Any]:
        objects: Primary[Any] = getattr(self, only_primary(type(self)).name)
        return objects

    async def _end(self, key: str, last: Any) -> None:
        await self._decide(key, last, finalizing=True)
        self._known.pop(key, None)

    async def _decide(self, key: str, found: Any, *, finalizing: bool = False) -> float | None:
        """Ask until the request has all objects that the answer asks for, and do what it says."""
        wanted = self._known.get(key, ())
        reads: dict[str, Document | None] = {}
        for _ in range(ROUNDS_MAX):
            for name in wanted:
                if name not in reads:
                    reads[name] = await self._read(name)
            request = HookRequest(
                controller=self.name,
                key=key,
                reason=self.runtime.reason(key),
                finalizing=finalizing,
                object=msgspec.to_builtins(found),
                children={slot: self._owned(slot) for slot in self._names},
                reads=reads,
            )
            answer = self._decoded(await self._send(msgspec.json.encode(request)))
            wanted = answer.reads
            if reads.keys() >= set(wanted):
                break
        else:
            raise self._error(f"asked for more reads {ROUNDS_MAX} times, last {wanted}")
        self._known.pop(key, None)
        if wanted:
            self._known[key] = wanted
            if len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]
        for slot, children in answer.children.items():
            await self._apply(slot, children)
        if answer.status and not finalizing:
            await self._primary.update_status(key, answer.status)
        return answer.requeue_after

    def _error(self, text: str) -> HookError:
        return HookError(f"hook {self.hook}: {text}")

    def _owned(self, slot: str) -> dict[str, Document]:
        owned = getattr(self, self._names[slot]).owned()
        return {name: msgspec.to_builtins(child) for name, child in owned.items()}

    async def _send(self, request: bytes) -> str:
        """Return the answer to the request; a replay returns the recorded one."""
        headers, limit_s = dict(trace_headers()), self.hook_timeout_s

        async def ask() -> str:
            carrier = self.requests or self.runtime.nats
            if not isinstance(carrier, Requester):
                raise self._error("there is no NATS connection to ask it over")
            try:
                data = await carrier.request(self.hook, request, headers=headers, timeout_s=limit_s)
            except StoreTimeoutError as error:
                raise self._error(
                    f"no answer within {limit_s:g} s; the service is busy, failed "
                    "without an answer, or its answer is larger than max_payload of the server"
                ) from error
            except TooLargeError as error:
                raise self._error(f"the request is too large: {error}") from error
            except StoreError as error:
                raise self._error(str(error)) from error
            return data.decode(errors="replace")

        return await (ask() if self.requests else outside(f"hook {self.hook}", ask))

    def _decoded(self, text: str) -> HookAnswer:
        try:
            document = json.loads(text, object_pairs_hook=_unique, parse_constant=_refused)
            msgspec.json.decode(text)  # refuses what can't be stored: 1e999, half a character
            answer = msgspec.convert(document, HookAnswer)
        except (ValueError, RecursionError) as error:  # of UTF-8, JSON and msgspec
            raise self._error(f"not a valid answer: {error}") from error
        if answer.version != VERSION:
            raise self._error(f"version {answer.version} of answers is unknown")
        if answer.requeue_after is not None and not is_delay(answer.requeue_after):
            raise self._error(f"requeueAfter: {answer.requeue_after} isn't seconds")
        for slot, children in answer.children.items():
            if slot not in self._names:
                declared = ", ".join(self._names) or "none"
                raise self._error(
                    f"children of {slot!r}, which isn't declared; declared are {declared}"
                )
            for name, child in children.items():
                if name_in := documents.metadata_of(child).get("name"):
                    own = f"{documents.metadata_of(child).get('namespace', '')}/{name_in}"
                    if name not in (own.lstrip("/"), own, name_in):
                        raise self._error(f"{slot} {name!r} is named {name_in!r}")
        if answer.error:
            failed = PermanentError if answer.permanent else HookError
            raise failed(f"hook {self.hook}: {answer.error}")
        return answer

    async def _apply(self, slot: str, desired: dict[str, Document]) -> None:
        """Write what differs, and delete what an answered slot doesn't have any more.

        A child that can't be stored is a failure like every other one: the next answer may be
        right although the object is the same, so it's retried.
        """
        reader: Any = getattr(self, self._names[slot])
        wanted = dict[str, Document]()
        for name, child in desired.items():
            key, value = name, child
            if isinstance(reader.kind, KubeKind):  # its manifest has the name and the namespace
                namespace, _, own = name.rpartition("/")
                place = {"namespace": namespace, "name": own} if namespace else {"name": own}
                value = {**child, "metadata": {**documents.metadata_of(child), **place}}
                key = reader.kind.key_of(value)
            if key in wanted:
                raise self._error(f"{slot} {key!r} occurs twice")
            wanted[key] = value
        existing = reader.owned()
        for key, value in wanted.items():
            try:
                if isinstance(reader, Secondary):
                    await reader.apply(key, msgspec.convert(value, reader.kind.type))
                else:
                    await reader.apply(value)
            except (InvalidKeyError, InvalidObjectError, msgspec.ValidationError) as error:
                raise self._error(f"{slot} {key!r}: {error}") from error
        for key in existing.keys() - wanted.keys():
            await reader.delete(key)

    async def _read(self, name: str) -> Document | None:
        slot = next((slot for slot in self._readable if name.startswith(f"{slot}/")), None)
        if slot is None:
            readable = ", ".join(self._readable) or "nothing"
            raise self._error(f"reads {name!r}, and may read {readable}: declare more with --reads")
        try:
            found = await self.reads.get(self._readable[slot], name.removeprefix(f"{slot}/"))
        except InvalidKeyError as error:  # as in `_apply`
            raise self._error(f"reads {name!r}: {error}") from error
        plain: Document | None = None if found is None else msgspec.to_builtins(found)
        return plain


def untyped(bucket: str, *, schema: Document | None = None) -> KvKind[Any]:
    """Declare JSON objects with `metadata`, `spec` and `status` that have no type in Python.

    Commands validate them by *schema*, a JSON Schema of the object; without one, by the schema that
    is published for the bucket, if any.
    """
    name = "".join(part.capitalize() for part in bucket.replace("_", "-").split("-"))
    fields: list[tuple[str, Any, Any]] = [("spec", dict[str, Any], msgspec.field())]
    kind = kv(
        msgspec.defstruct(name, fields, bases=(Object,), frozen=True, kw_only=True, rename="camel"),
        bucket=bucket,
    )
    kind.schema = schema or {}
    return kind


def slot_name(kind: Kind[Any]) -> str:
    """Return what requests and answers call a kind: a bucket, or `v1/ConfigMap`."""
    if isinstance(kind, KubeKind):
        return f"{kind.api_version}/{kind.kind}"
    return kind.bucket if isinstance(kind, KvKind) else kind.name


def hook_class(path: str) -> type[HookController]:
    """Return the class that a path such as `hook:shops.sync?primary=shops&secondary=routes` names.

    Raises `UsageError` if the path has no primary, or an option that is unknown.
    """
    hook, _, query = path.removeprefix(SCHEME).partition("?")
    options = parse_qs(query, keep_blank_values=True)
    unknown = options.keys() - {"primary", "secondary", "reads", "finalize", "schema", "name"}
    if unknown:
        raise UsageError(f"{path}: unknown option {min(unknown)!r}")
    primaries = options.get("primary", [])
    if len(primaries) != 1 or primaries[0].startswith(KUBE):
        raise UsageError(f"the hook {hook} needs one bucket of primaries: --primary BUCKET")
    schemas = dict(_schema(text) for text in options.get("schema", ()))
    children = [_kind(text, schemas) for text in options.get("secondary", ())]
    reads = tuple(_kind(text, {}, plain=True) for text in options.get("reads", ()))
    body: dict[str, Any] = {
        "__doc__": f"Asks {hook} what each object of {primaries[0]} needs.",
        "name": next(iter(options.get("name", ())), hook.replace(".", "-")),
        "hook": hook,
        "hook_finalize": "finalize" in options,
        "hook_reads": reads,
        "kinds": tuple(kind for kind in reads if isinstance(kind, KubeKind)),
        "path": path,
        "objects": primary(untyped(primaries[0], schema=schemas.get(primaries[0]))),
        **{f"children_{place}": secondary(kind) for place, kind in enumerate(children)},
    }
    return type("Hook", (HookController,), body)


def hook_schemas() -> dict[str, Document]:
    """Return the JSON Schemas of a request and of an answer."""
    messages: dict[str, type] = {"request": HookRequest, "answer": HookAnswer}
    return {name: json_schema(kv(kind, bucket="hook")) for name, kind in messages.items()}


def _kind(text: str, schemas: Mapping[str, Document], *, plain: bool = False) -> AnyKind:
    """Return the kind that an option names: a bucket, or `kube:v1/ConfigMap`."""
    if not text.startswith(KUBE):
        return kv(dict, bucket=text) if plain else untyped(text, schema=schemas.get(text))
    place = PurePosixPath(text.removeprefix(KUBE))
    if len(place.parts) not in (2, 3):
        raise UsageError(f"{text!r}: write kube:v1/ConfigMap, or kube:apps/v1/Deployment")
    return kube(str(place.parent), place.name)


def _schema(text: str) -> tuple[str, Document]:
    bucket, separator, schema = text.partition("=")
    if not separator:
        raise UsageError(f"--schema {text!r}: write BUCKET=FILE")
    try:
        return bucket, msgspec.json.decode(schema, type=Document)
    except msgspec.DecodeError as error:
        raise UsageError(f"--schema {bucket}: not a JSON object: {error}") from error


def _unique(pairs: Iterable[tuple[str, Any]]) -> Document:
    """Return an object; raises `ValueError` for a name that occurs twice."""
    made: Document = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{name!r} occurs twice in one object")
        made[name] = value
    return made


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} isn't a number in JSON")
