"""The published schema of a kind: its fields, its columns, and the controller that declares it.

A daemon publishes the schemas of its kinds in the bucket `natsctl`, so that commands know the types
without the code. If several daemons do, the one with the newest types decides.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from natsctl.errors import DECODE_ERRORS, UsageError
from natsctl.model.documents import Document
from natsctl.model.keys import legal, matches
from natsctl.model.kinds import Kind, KvKind, kv

T = TypeVar("T")

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
PREFIX: Final = "schema"

Role = Literal["primary", "secondary", "tertiary"]
"""The use of a kind by the controller; an earlier role outranks a later one."""

_RANKS: dict[Role, int] = {"primary": 2, "secondary": 1, "tertiary": 0}
_ATTRIBUTES = re.compile(r"^(Attributes|Args):\n((?:[ \t]+.*\n?|\n)+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^(\w+)(?: \(.*\))?:\s+(.*)", re.DOTALL)


class KindSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of a kind, as one controller declares it."""

    kind: str  # its name, such as `Shop.shops`
    bucket: str
    keys: str = ">"
    version: int = 1  # of the type, the newest
    controller: str
    controller_version: str = ""
    role: Role = "primary"
    columns: dict[str, str] = {}  # the paths of the columns of tables, by heading
    schema: Document  # of an object, as JSON Schema (2020-12)

    @classmethod
    def of(
        cls, kind: KvKind[Any], *, controller: str, controller_version: str = "", role: Role
    ) -> Self:
        """Return the schema of *kind*; raises `UsageError` if its type has no JSON Schema."""
        return cls(
            kind=kind.name,
            bucket=kind.bucket,
            keys=kind.keys,
            version=kind.version,
            controller=controller,
            controller_version=controller_version,
            role=role,
            columns=kind.columns,
            schema=json_schema(kind),
        )

    @classmethod
    def parse(cls, value: bytes) -> Self | None:
        """Return the schema in a record; None if the record can't be read."""
        try:
            return msgspec.json.decode(value, type=cls)
        except DECODE_ERRORS:
            return None

    @property
    def key(self) -> str:
        return f"{PREFIX}.{self.kind}"

    @property
    def source(self) -> str:
        version = f" {self.controller_version}" if self.controller_version else ""
        return f"controller {self.controller}{version}"

    def describes(self, key: str) -> bool:
        return matches(self.keys, key)

    def replaces(self, published: "KindSchema") -> bool:
        """Return whether a daemon with this schema overwrites the *published* one.

        The controller whose primary it is decides, then the newer version of the type, then the
        newer version of the controller. Of equal ones, the same controller overwrites its own.
        """
        if self == published or published.rank > self.rank:
            return False
        return self.rank > published.rank or self.controller == published.controller

    @property
    def rank(self) -> tuple[int, int, list[tuple[int, int, str]]]:
        return _RANKS[self.role], self.version, _parts(self.controller_version)


class PublishedKind(KvKind[T]):
    """The objects of a bucket, named and described by a published schema instead of their type."""

    def __init__(self, schema: KindSchema, object_type: type[T]) -> None:
        super().__init__(object_type, bucket=schema.bucket)
        self.name = schema.kind
        self.schema = schema.schema


SCHEMAS: KvKind[KindSchema] = kv(
    KindSchema, bucket="natsctl", keys=f"{PREFIX}.>", history=1, replicas=None
)
"""The key `schema.KIND` has the schema of the kind KIND."""


def has_schema(kind: Kind[Any]) -> bool:
    """Return whether the values of *kind* are JSON of a known type, and its name is a legal key."""
    known = isinstance(kind, KvKind) and kind.typed and kind.schema != {}
    return known and legal(f"{PREFIX}.{kind.name}")


def json_schema(kind: KvKind[Any]) -> Document:
    """Return the JSON Schema of the values of *kind*; a type that is unknown permits any value.

    Docstrings are descriptions; a section `Attributes` describes the fields. Raises `UsageError`
    if the type has no JSON Schema.
    """
    if kind.schema:
        return {"$schema": DIALECT, **kind.schema}
    try:
        schema = msgspec.json.schema(kind.type, schema_hook=_any_value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{kind.name} has no JSON Schema: {error}") from error
    for definition in schema.get("$defs", {}).values():
        _describe(definition)
        for field in definition.get("properties", {}).values():
            if field.get("uniqueItems") and "default" in field:  # a set has a random order
                field["default"] = sorted(field["default"], key=msgspec.json.encode)
    return msgspec.json.decode(msgspec.json.encode({"$schema": DIALECT, **schema}), type=Document)


def _any_value(_unknown: type) -> Document:
    return {"$comment": "any value"}


def _describe(definition: dict[str, Any]) -> None:
    text = inspect.cleandoc(definition.get("description", ""))
    section = _ATTRIBUTES.search(text)
    if section is not None:
        described = dict(_attributes(section[2]))
        for name, field in definition.get("properties", {}).items():
            meaning = described.get(_plain(name))
            if meaning and "description" not in field:
                field["description"] = meaning
        text = (text[: section.start()] + text[section.end() :]).strip()
    if text:
        definition["description"] = text


def _attributes(section: str) -> Iterator[tuple[str, str]]:
    for block in re.split(r"\n(?=\w)", inspect.cleandoc(section)):
        entry = _ATTRIBUTE.match(block)
        if entry is not None:
            yield _plain(entry[1]), " ".join(entry[2].split())


def _plain(name: str) -> str:
    """Return a field's name without case and underscores: JSON names may be in camel case."""
    return name.replace("_", "").lower()


def _parts(version: str) -> list[tuple[int, int, str]]:
    """Return a version such as `1.10` or `v2.0rc1` in a form in which the newer one is greater.

    Numbers are compared as numbers, and a text such as `rc` comes before the end.
    """
    tokens = re.findall(r"\d+|[a-z]+", version.lower().removeprefix("v"))
    parts = [(2, int(token), "") if token.isdigit() else (0, 0, token) for token in tokens]
    return [*parts, (1, 0, "")] if parts else []
