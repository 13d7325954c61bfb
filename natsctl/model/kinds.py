"""Kinds: one sort of object, where it is kept, and how its bytes become Python and back."""

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Literal, TypeVar, get_origin

import msgspec

from natsctl.errors import DECODE_ERRORS, InvalidObjectError, UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.keys import legal, matches
from natsctl.model.objects import Head, Metadata, Object

T = TypeVar("T")

_head = msgspec.json.Decoder(Head)


class Kind(Generic[T]):
    """One sort of object. `name` is what owner labels call it; `type` what values decode to.

    A type that is no `Object` makes the kind *plain*: the whole value is the spec, and there are
    no labels, finalizers or status.
    """

    def __init__(
        self,
        of: type[T],
        name: str,
        *,
        decoder: Callable[[bytes], T] | None = None,
        encoder: Callable[[T], bytes] | None = None,
    ) -> None:
        self.name = name
        self.type = of
        self.plain = not issubclass(get_origin(of) or of, Object)
        self.optional = False  # whether a controller works without this kind
        if (decoder or encoder) and not self.plain:
            raise UsageError(
                f"{name}: an Object is JSON, because every client reads its metadata: give a "
                "decoder and an encoder only for a type that is no Object"
            )
        self._custom = decoder is not None or encoder is not None
        self._encode = encoder
        if decoder is None and of is not bytes:
            decoder = msgspec.json.Decoder(of).decode
        self._decode = decoder

    def __repr__(self) -> str:
        return f"<kind {self.name}>"

    def decode(self, value: bytes) -> T:
        """Return the object in *value*; raises `InvalidObjectError` that says where it is wrong."""
        if self._decode is None:
            return value  # type: ignore[return-value]  # T is bytes: the value itself
        try:
            return self._decode(value)
        except Exception as error:  # a user's type may raise anything, nesting a RecursionError
            raise InvalidObjectError(f"no valid {self.type.__name__}: {error}") from error

    def valid(self, value: bytes) -> bool:
        """Say whether *value* is an object of this kind."""
        try:
            self.decode(value)
        except InvalidObjectError:
            return False
        return True

    def metadata(self, value: bytes) -> Metadata:
        """Return the metadata in *value*; a plain kind has none, `UsageError`."""
        self.require_metadata()
        try:
            return _head.decode(value).metadata
        except DECODE_ERRORS as error:
            raise InvalidObjectError(f"no valid metadata: {error}") from error

    def metadata_of(self, obj: T) -> Metadata:
        """Return the metadata of a decoded object; a plain kind has none, `UsageError`."""
        if not isinstance(obj, Object):
            self.require_metadata()
            raise UsageError(f"{self.name} holds {self.type.__name__}, not {type(obj).__name__}")
        return obj.metadata

    def require_metadata(self) -> None:
        """Raise `UsageError` where objects of this kind have no metadata."""
        if self.plain:
            raise UsageError(
                f"{self.name} has no labels, finalizers or status: "
                f"make {self.type.__name__} a subclass of natsctl.Object"
            )

    def overlay(self, current: bytes | None, obj: T) -> Document:
        """Return the current document with what *obj* says laid over it, labels merged."""
        metadata = self.metadata_of(obj)
        document = {} if current is None else documents.parse(current)
        given = documents.overlay(document, obj)  # type: ignore[arg-type]  # it has metadata
        given["metadata"] = documents.metadata_of(document)
        return documents.with_labels(given, metadata.labels, metadata.annotations)

    def encode(self, current: bytes | None, obj: T) -> bytes:
        """Return the value to store for *obj*: the current one with what *obj* says changed.

        Fields that the type does not know stay; generation, uid, finalizers and status are kept.
        Where that changes nothing, the value is the current one.
        """
        if self._custom:
            return self._encoded(obj)
        if self.plain and isinstance(obj, bytes):
            return obj
        before = None
        if current is not None:
            with suppress(InvalidObjectError):  # what is no document is replaced
                before = documents.parse(current)
        if self.plain:
            new = documents.laid(before, obj)
        else:
            new = documents.stamp(before, self.overlay(None if before is None else current, obj))
        return current if current is not None and new == before else documents.render(new)

    def _encoded(self, obj: T) -> bytes:
        if self._encode is None:
            raise UsageError(f"{self.name} is only read: declare an encoder to write it")
        return self._encode(obj)

    def likely_cause(self, value: bytes) -> str:  # noqa: ARG002 - known of buckets only
        """Return what is probably wrong with the declaration if *value* is invalid, or nothing."""
        return ""

    def describes(self, obj: object) -> bool:
        """Say whether the decoded object *obj* is one of this kind's."""
        return isinstance(obj, get_origin(self.type) or self.type)

    def holds(self, key: str) -> bool:  # noqa: ARG002 - a kind that has all of its store
        """Say whether *key* may be one of this kind's."""
        return True

    def differs(self, old: bytes, new: bytes) -> bool:
        """Say whether two valid values desire different things."""
        return old != new if self.plain else documents.desire_differs(old, new)


class KvKind(Kind[T]):
    """Objects of one JetStream KV bucket, or of the part of it whose keys match `keys`."""

    def __init__(
        self,
        of: type[T],
        *,
        bucket: str,
        keys: str = ">",
        history: int | None = None,
        ttl_s: float | None = None,
        replicas: int | None = None,
        storage: Literal["file", "memory"] | None = None,
        max_value_bytes: int | None = None,
        create: bool = True,
        decoder: Callable[[bytes], T] | None = None,
        encoder: Callable[[T], bytes] | None = None,
    ) -> None:
        super().__init__(of, f"{of.__name__}.{bucket}", decoder=decoder, encoder=encoder)
        self.bucket = bucket
        self.keys = keys
        self.history = history
        self.ttl_s = ttl_s
        self.replicas = replicas
        self.storage = storage
        self.max_value_bytes = max_value_bytes
        self.create = create

    def part(self, keys: str) -> "KvKind[T]":
        """Return the part of this kind whose keys match *keys* and nothing else."""
        part: KvKind[T] = copy.copy(self)
        part.keys = keys
        return part

    def existing(self) -> "KvKind[T]":
        """Return this kind, but the bucket must exist."""
        existing: KvKind[T] = copy.copy(self)
        existing.create = False
        return existing

    def likely_cause(self, value: bytes) -> str:
        """See `Kind.likely_cause`."""
        if self._custom:
            return ""
        try:
            document = msgspec.json.decode(value)
        except DECODE_ERRORS:
            return "declare `bytes`, or give a decoder: the values are not JSON"
        fields = document.keys() if isinstance(document, dict) else ()
        if not self.plain and "spec" not in fields:
            return "declare a plain Struct: the values have no `spec`"
        if self.plain and "spec" in fields and "metadata" in fields:
            return "declare a subclass of natsctl.Object: the values have `metadata` and `spec`"
        return ""

    def holds(self, key: str) -> bool:
        """Return whether *key* is legal and in the part of the bucket that is meant."""
        return legal(key) and matches(self.keys, key)


def kv(
    of: type[T],
    *,
    bucket: str,
    keys: str = ">",
    history: int | None = None,
    ttl_s: float | None = None,
    replicas: int | None = None,
    storage: Literal["file", "memory"] | None = None,
    max_value_bytes: int | None = None,
    create: bool = True,
    decoder: Callable[[bytes], T] | None = None,
    encoder: Callable[[T], bytes] | None = None,
) -> KvKind[T]:
    """Declare objects of type *of*, kept in a JetStream KV bucket.

    Args:
        of: an `Object` subclass, or any type that msgspec decodes (a Struct, `dict`, `bytes`):
            then the whole value is the spec.
        bucket: the bucket's name, `[A-Za-z0-9_-]+`.
        keys: only keys that match this NATS subject pattern (`*` one token, `>` the rest).
        history: revisions that the bucket keeps of each key, 1 to 64. With more than 1, the last
            state of an object can be read that was deleted while no daemon ran.
        ttl_s: seconds after which a value expires; 0 keeps values for ever.
        replicas: copies in the cluster, 1 to 5.
        storage: where the server keeps the bucket, `file` or `memory`.
        max_value_bytes: the largest value that the bucket takes, with some 60 to 100 bytes of
            headers.
        create: create the bucket at start if it does not exist; False demands that it exists.
        decoder: turns a value into a *T*, if values are not JSON; it may raise anything.
        encoder: turns a *T* into a value; without one, a kind with a decoder is only read.

    An existing bucket may have any value for an option that is not given. An option that is given
    and differs is an error at start that names the option. A new bucket has history 5, is kept in
    files, has three replicas in a cluster and one on a single server, and no other limit.
    """
    return KvKind(
        of,
        bucket=bucket,
        keys=keys,
        history=history,
        ttl_s=ttl_s,
        replicas=replicas,
        storage=storage,
        max_value_bytes=max_value_bytes,
        create=create,
        decoder=decoder,
        encoder=encoder,
    )
