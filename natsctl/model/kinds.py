"""Kinds: the type, the store and the encoding of objects."""

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Generic, Literal, Self, TypeVar, get_origin, get_type_hints

import msgspec
import msgspec.inspect

from natsctl.errors import DECODE_ERRORS, InvalidObjectError, NewerVersionError, UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.keys import key_patterns, legal, matches
from natsctl.model.masking import masked_text
from natsctl.model.objects import Metadata, Object, head
from natsctl.model.schemas.field_paths import parse_columns
from natsctl.model.schemas.versions import Older, Versions, stated, stored_version, version_of

T = TypeVar("T")

_NO_COLUMNS: Mapping[str, str] = MappingProxyType({})


class _Generation(msgspec.Struct, frozen=True, gc=False):
    generation: int = 0


class _Counted(msgspec.Struct, frozen=True, gc=False):
    metadata: _Generation = _Generation()


_counted = msgspec.json.Decoder(_Counted)


def _desire_in(object_type: type[Any]) -> Callable[[bytes], Any] | None:
    """Return a function that reads the spec and the generation; None if specs can't be compared."""
    try:
        spec = get_type_hints(object_type).get("spec")
        if hasattr(object_type, "__post_init__"):
            return None  # it may change the spec of an object, but not the spec that is read here
        if spec is None or not _comparable(msgspec.inspect.type_info(spec), set()):
            return None
        fields: list[Any] = [("spec", spec), ("metadata", _Generation, _Generation())]
        return msgspec.json.Decoder(msgspec.defstruct("Desire", fields)).decode
    except Exception:  # noqa: BLE001 - user types raise anything, and are used without it
        return None


def _comparable(info: Any, seen: set[type]) -> bool:
    """Return whether equal JSON always decodes to values of the type that are equal."""
    if isinstance(info, msgspec.inspect.StructType):
        if info.cls in seen:
            return True
        seen.add(info.cls)
        known = bool(info.cls.__struct_config__.eq) and "__eq__" not in vars(info.cls)
        return known and all(_comparable(field.type, seen) for field in info.fields)
    if isinstance(info, msgspec.inspect.UnionType):
        return all(_comparable(part, seen) for part in info.types)
    if isinstance(info, msgspec.inspect.DictType):
        return _comparable(info.value_type, seen)
    if isinstance(info, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
        return _comparable(info.item_type, seen)
    plain = (msgspec.inspect.IntType, msgspec.inspect.FloatType, msgspec.inspect.StrType)
    return isinstance(info, (*plain, msgspec.inspect.BoolType, msgspec.inspect.NoneType))


class Kind(Generic[T]):
    """A kind of objects.

    If the type isn't an `Object`, the kind is *plain*: the whole value is the spec, and its
    objects have no labels, finalizers or status.

    Attributes:
        name: the name in owner labels and messages.
        type: the type that values decode to.
        plain: whether objects have no metadata.
        optional: whether a controller works without this kind.
        version: the number of the newest version of the type; the first is 1.
    """

    def __init__(
        self,
        object_type: type[T],
        name: str,
        *,
        decoder: Callable[[bytes], T] | None = None,
        encoder: Callable[[T], bytes] | None = None,
        versions: Versions[T] | None = None,
    ) -> None:
        self.name = name
        self.type = object_type
        self.plain = not issubclass(get_origin(object_type) or object_type, Object)
        self.optional = False
        if (decoder or encoder) and not self.plain:
            raise UsageError(
                f"{name}: an Object is JSON, because every client reads its metadata. Use decoder "
                "and encoder only with a type that is not an Object"
            )
        self._custom = decoder is not None or encoder is not None
        self._encode = encoder
        self.version = 1 if versions is None else versions.number
        self._versions = versions
        if versions is not None:
            decoder = versions.decode
        elif decoder is None and object_type is not bytes:
            decoder = msgspec.json.Decoder(object_type).decode
        self._decode = decoder
        plain = self.version == 1 and type(self).decode is Kind.decode
        self.decoder = decoder if plain else None
        """The function that `decode` calls, if that only translates its errors; None otherwise."""
        self.desire = None if self.plain or versions or self._custom else _desire_in(object_type)
        """Reads the spec and the generation: states differ if these do, else `differs` decides.

        Those of a decoded object are equal to them.
        """

    def __repr__(self) -> str:
        return f"<kind {self.name}>"

    @property
    def typed(self) -> bool:
        """True if values are JSON that decodes to the kind's type."""
        return not self._custom and self.type is not bytes

    def decode(self, value: bytes) -> T:
        """Return the object in *value*; raises `InvalidObjectError` that names the wrong field.

        An object that was stored as an older type is upgraded. Raises `NewerVersionError` if a
        newer version of the type stored the object, and this one can't read it.
        """
        if self._decode is None:
            return value  # type: ignore[return-value]  # T is bytes
        try:
            return self._decode(value)
        except Exception as error:  # user types raise anything; nesting, RecursionError
            raise self._invalid(value, str(error)) from error

    def _invalid(self, value: bytes, reason: str) -> InvalidObjectError:
        message = f"not a valid {self.type.__name__}: {masked_text(reason, [value])}"
        number = 1 if self.plain else stored_version(value)
        if number <= self.version:
            return InvalidObjectError(message)
        return NewerVersionError(
            f"stored by a newer version ({number}, and this program reads versions up to "
            f"{self.version}): {message}"
        )

    def document(self, value: bytes) -> Document:
        """Return the document in *value*, in the form of the newest version of the type.

        Raises `InvalidObjectError` if *value* isn't a JSON object or an upgrade fails, and
        `NewerVersionError` as `decode` does.
        """
        if self._versions is not None:
            try:
                document = self._versions.document(value)
            except Exception as error:  # as for `decode`
                raise self._invalid(value, str(error)) from error
        else:
            document = documents.parse(value)
        if version_of(document) > self.version:
            self.decode(value)  # raises if it can't be read
        return document

    def converted(self, old: bytes, new: bytes) -> bool:
        """Return whether two values differ only in the version that they are stored as."""
        if self._versions is None or stored_version(old) == stored_version(new):
            return False
        try:
            return documents.same(self.document(old), self.document(new))
        except InvalidObjectError:
            return False

    def valid(self, value: bytes) -> bool:
        try:
            self.decode(value)
        except InvalidObjectError:
            return False
        return True

    def metadata(self, value: bytes) -> Metadata:
        """Return the metadata in *value*; raises `UsageError` for a plain kind."""
        self.require_metadata()
        try:
            return head.decode(value).metadata
        except DECODE_ERRORS as error:
            raise InvalidObjectError(f"invalid metadata: {error}") from error

    def generation(self, value: bytes) -> int:
        """Return the generation in *value*, 0 if it has none; faster than `metadata`."""
        try:
            return _counted.decode(value).metadata.generation
        except DECODE_ERRORS:
            return 0

    def metadata_of(self, obj: T) -> Metadata:
        """Return the metadata of a decoded object; raises `UsageError` for a plain kind."""
        if not isinstance(obj, Object):
            self.require_metadata()
            raise UsageError(f"{self.name} holds {self.type.__name__}, not {type(obj).__name__}")
        return obj.metadata

    def require_metadata(self) -> None:
        if self.plain:
            raise UsageError(
                f"{self.name} has no labels, finalizers or status; "
                f"make {self.type.__name__} a subclass of natsctl.Object"
            )

    def require_writable(self) -> None:
        """Raise `UsageError` if objects have no metadata, or only their metadata is watched."""
        self.require_metadata()

    def overlay(self, current: bytes | None, obj: T) -> Document:
        """Return the current document with the fields of *obj* set and its labels added.

        The result has the form of the newest version of the type.
        """
        return self._overlay({} if current is None else self.document(current), obj)

    def _overlay(self, document: Document, obj: T) -> Document:
        metadata = self.metadata_of(obj)
        result = documents.overlay(document, obj)  # type: ignore[arg-type]  # it has metadata
        result["metadata"] = documents.metadata_of(document)
        result = documents.with_labels(result, metadata.labels, metadata.annotations)
        return stated(result, max(self.version, version_of(document)))

    def encode(self, current: bytes | None, obj: T) -> bytes:
        """Return the value to store for *obj*: the current value with the fields of *obj* set.

        Fields that the type doesn't know, generation, uid, finalizers and status are kept. If
        nothing changes, you get the current value. Raises `NewerVersionError` if a newer version of
        the type stored the current value, and this one can't read it.
        """
        if self._custom:
            if self._encode is None:
                raise UsageError(f"{self.name} is read-only: declare an encoder to write it")
            return self._encode(obj)
        if self.plain and isinstance(obj, bytes):
            return obj
        before = None if current is None else self._current_document(current)
        if self.plain:
            new = documents.overlay_value(before, obj)
        else:
            new = documents.stamp(before, self._overlay(before or {}, obj))
        return current if current is not None and new == before else self.render(new, current)

    def render(self, new: object, current: bytes | None) -> bytes:
        """Return the value of a document that replaces *current*.

        Raises `UsageError` if the object would become invalid: no controller would see it.
        """
        value = documents.render(new)
        try:
            self.decode(value)
        except InvalidObjectError as error:
            if current is None or self.valid(current):
                raise UsageError(f"{self.name} cannot hold this object: {error}") from error
        return value

    def _current_document(self, current: bytes) -> Document | None:
        """Return the document that a write changes; None if it replaces an invalid value."""
        try:
            return documents.parse(current) if self.plain else self.document(current)
        except NewerVersionError:
            raise
        except InvalidObjectError:
            with suppress(InvalidObjectError):
                return documents.parse(current)
            return None

    def _changed(self, **attributes: object) -> Self:
        changed = copy.copy(self)
        vars(changed).update(attributes)
        return changed

    def likely_cause(self, value: bytes) -> str:  # noqa: ARG002 - for buckets only
        """Return how to fix the declaration of the kind if *value* is invalid; empty if unknown."""
        return ""

    def describes(self, obj: object) -> bool:
        return isinstance(obj, get_origin(self.type) or self.type)

    def holds(self, key: str) -> bool:  # noqa: ARG002 - every key
        """Return whether *key* may belong to an object of this kind."""
        return True

    def digest(self, value: bytes) -> str:
        """Return a digest of the desired state in a value; equal states have equal digests."""
        desired = value if self.plain else documents.desired_state(value)
        return hashlib.blake2b(desired, digest_size=12).hexdigest()

    def differs(self, old: bytes, new: bytes) -> bool:
        """Return whether two valid values have different desired states."""
        if self.plain:
            return old != new
        if self._versions is not None:
            old, new = (documents.render(self.document(value)) for value in (old, new))
        return documents.desire_differs(old, new)


class KeptStatus(Object, frozen=True):
    """The status of a primary whose own bucket is a read-only mirror."""


class KvKind(Kind[T]):
    """What's in a JetStream KV bucket: objects of this type.

    Example: `greetings = primary(kv(Greeting, bucket="greetings"))`

    Args:
        object_type: a subclass of `Object`, or another type that msgspec decodes, such as a Struct,
            `dict` or `bytes`. Of another type, the whole value is the spec.
        bucket: the bucket's name, `[A-Za-z0-9_-]+`.
        keys: a NATS subject pattern that selects keys, or several: `*` is one token, `>` is the
            rest. The server sends no other keys. No key may match two of the patterns.
        history: revisions that the bucket keeps of each key, 1 to 64. With more than 1, you can
            read the last state of an object that was deleted while no daemon ran.
        ttl_s: seconds after which a value expires; 0 means never.
        replicas: copies in the NATS cluster, 1 to 5.
        storage: the bucket's storage, `file` or `memory`.
        max_value_bytes: the largest value of the bucket, including 60 to 100 bytes of headers.
        create: create the bucket if it doesn't exist; if False, it has to exist.
        status_bucket: where the status of each primary goes, under its key, if *bucket* is a
            read-only mirror. It's created if it doesn't exist. Only for the primary of a
            `Controller`.
        decoder: decodes a value that isn't JSON; to refuse it, raise any exception.
        encoder: encodes an object; a kind with a decoder and no encoder is read-only.
        older: the earlier types of the objects, the newest first, each with a pure function that
            makes the newest type of it. That's how stored objects of an earlier type are read.
        version: the number of the type's version; by default, one more than the number of older
            types. Set it if you remove a type from *older*, so that the number doesn't fall.
        columns: the columns that `natsctl get` and `natsctl get -w` show: the path of a field, such
            as `spec.image`, by heading.

    An existing bucket is taken as it is. If you set an option and the bucket differs, that's an
    error at start, which names the option. A new bucket has history 5, file storage, three replicas
    in a cluster and one on a single server, and no other limit.
    """

    def __init__(
        self,
        object_type: type[T],
        *,
        bucket: str,
        keys: str | Sequence[str] = ">",
        history: int | None = None,
        ttl_s: float | None = None,
        replicas: int | None = None,
        storage: Literal["file", "memory"] | None = None,
        max_value_bytes: int | None = None,
        create: bool = True,
        status_bucket: str | None = None,
        decoder: Callable[[bytes], T] | None = None,
        encoder: Callable[[T], bytes] | None = None,
        older: Older[T] = (),
        version: int | None = None,
        columns: Mapping[str, str] = _NO_COLUMNS,
    ) -> None:
        parse_columns(columns)
        self.columns = dict(columns)
        versions = (
            Versions(object_type, older, version) if older or version not in {None, 1} else None
        )
        super().__init__(
            object_type,
            f"{object_type.__name__}.{bucket}",
            decoder=decoder,
            encoder=encoder,
            versions=versions,
        )
        self.bucket = bucket
        self.keys = key_patterns(keys)
        self.history = history
        self.ttl_s = ttl_s
        self.replicas = replicas
        self.storage = storage
        self.max_value_bytes = max_value_bytes
        self.create = create
        self.statuses: KvKind[KeptStatus] | None = None
        if status_bucket is not None:
            self.require_metadata()
            if status_bucket == bucket:
                raise UsageError(f"{self.name}: status_bucket has to be another bucket")
            self.statuses = KvKind(KeptStatus, bucket=status_bucket, keys=keys)
        self.schema: Document | None = None  # in place of the type's; empty if it's not known

    def part(self, keys: str) -> "KvKind[T]":
        """Return this kind with another key pattern."""
        return self._changed(keys=key_patterns(keys))

    def existing(self) -> "KvKind[T]":
        """Return this kind without the permission to create its bucket."""
        return self._changed(create=False)

    def likely_cause(self, value: bytes) -> str:
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
        return legal(key) and matches(self.keys, key)


kv = KvKind
