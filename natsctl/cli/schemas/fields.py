"""Finds the fields of a JSON Schema, and the fields of a document that the schema does not have."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from natsctl.model import documents, exact_json
from natsctl.operate.entries import preview

Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""


_NOTES: Final = {
    "default": "default",
    "enum": "enum",
    "const": "constant",
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusiveMinimum": "greater than",
    "exclusiveMaximum": "less than",
    "multipleOf": "multiple of",
    "minLength": "minimum length",
    "maxLength": "maximum length",
    "pattern": "pattern",
    "format": "format",
    "minItems": "minimum items",
    "maxItems": "maximum items",
    "examples": "examples",
}
"""The keywords of a schema that are notes, with their titles."""


class UnknownField(msgspec.Struct, frozen=True):
    """A field that the schema does not have.

    Attributes:
        path: the path of the field, such as `spec.txt`.
        name: the last part of the path.
        known: the fields that the schema has in its place.
    """

    path: str
    name: str
    known: tuple[str, ...]

    @property
    def first(self) -> str:
        """The first field of the path."""
        return first_field(self.path)


def first_field(path: str) -> str:
    """Return the first field of a path such as `spec.ports[0]`."""
    return path.partition(".")[0].partition("[")[0]


class Fields:
    """The fields that a JSON Schema describes."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def resolved(self, schema: Schema) -> Schema:
        """Return the schema with its reference followed; its own keywords have precedence."""
        reference = schema.get("$ref")
        if reference is None:
            return schema
        name = reference.rpartition("/")[2]
        definition = self._root.get("$defs", {}).get(name, {})
        return {**self.resolved(definition), **documents.without(schema, "$ref")}

    def variants(self, schema: Schema) -> list[Schema]:
        """Return the alternatives of a union, or the schema itself."""
        resolved = self.resolved(schema)
        if "anyOf" not in resolved:
            return [resolved]
        return [variant for part in resolved["anyOf"] for variant in self.variants(part)]

    def structs(self, schema: Schema) -> list[Schema]:
        """Return the alternatives with fields: of the schema, its items or its values."""
        structs: list[Schema] = []
        for variant in self.variants(schema):
            if "properties" in variant:
                structs.append(variant)
            for part in (*variant.get("prefixItems", ()), *_inner_schemas(variant)):
                structs += self.structs(part)
        return structs

    def of(self, schema: Schema) -> dict[str, Schema]:
        """Return the fields of the schema by name; a union has those of all its alternatives."""
        return {
            name: field
            for struct in self.structs(schema)
            for name, field in struct.get("properties", {}).items()
        }

    def free(self, schema: Schema) -> Schema | None:
        """Return the schema of the values of a mapping with any names; None for another type."""
        for variant in self.variants(schema):
            if variant.get("type") == "object" and "properties" not in variant:
                extra = variant.get("additionalProperties")
                return extra if isinstance(extra, dict) else {}
        return None

    def type_of(self, schema: Schema) -> str:
        """Return the name of the type, as `kubectl explain` prints it."""
        return " | ".join(dict.fromkeys(map(self._type_name, self.variants(schema))))

    def notes(self, schema: Schema) -> list[str]:
        """Return the default and the limits of a value."""
        notes = []
        for variant in [self.resolved(schema), *self.variants(schema)]:
            notes += [
                f"{title}: {', '.join(map(_json, value if keyword == 'enum' else [value]))}"
                for keyword, title in _NOTES.items()
                for value in [variant.get(keyword, msgspec.UNSET)]
                if value is not msgspec.UNSET
            ]
        return list(dict.fromkeys(notes))

    def description(self, schema: Schema) -> str:
        """Return the meaning of a value: of the field, or else of its type."""
        resolved = self.resolved(schema)
        texts = [resolved.get("description", "")]
        if not texts[0]:
            texts = [variant.get("description", "") for variant in self.variants(schema)]
        return "\n\n".join(filter(None, dict.fromkeys(texts)))

    def _type_name(self, schema: Schema) -> str:
        kind = schema.get("type")
        if kind == "array":
            parts = [*schema.get("prefixItems", ()), *_inner_schemas(schema)]
            inner = ", ".join(map(self.type_of, parts)) or "any"
            return f"[]({inner})" if len(parts) > 1 or " | " in inner else f"[]{inner}"
        if kind == "object" and "properties" not in schema:
            values = _inner_schemas(schema)
            return f"map[string]{self.type_of(values[0]) if values else 'any'}"
        if kind == "object":
            return str(schema.get("title", "object"))
        if kind is None and "enum" in schema:
            return (
                "string" if all(isinstance(value, str) for value in schema["enum"]) else "integer"
            )
        return str(kind or "any")

    def unknown(self, document: object) -> Iterator[UnknownField]:
        """Yield the unknown fields of a document."""
        yield from self._unknown(self._root, document, "")

    def _unknown(self, schema: Schema, value: object, path: str) -> Iterator[UnknownField]:
        variants = self._matching(schema, value)
        if isinstance(value, list):
            for number, item in enumerate(value):
                for variant in variants:
                    part = _item(variant, number)
                    yield from self._unknown(part, item, f"{path}[{number}]")
        elif isinstance(value, dict):
            yield from self._unknown_names(variants, value, path)

    def _unknown_names(
        self, variants: list[Schema], value: dict[str, object], path: str
    ) -> Iterator[UnknownField]:
        known: dict[str, Schema] = {}
        free: Schema | None = None
        for variant in variants:
            known.update(variant.get("properties", {}))
            if "properties" not in variant:
                extra = variant.get("additionalProperties", {})
                free = extra if isinstance(extra, dict) else {}
        for name, item in value.items():
            inner = f"{path}.{name}" if path else name
            if name in known:
                yield from self._unknown(known[name], item, inner)
            elif free is not None:
                yield from self._unknown(free, item, inner)
            elif variants:
                yield UnknownField(inner, name, tuple(known))

    def _matching(self, schema: Schema, value: object) -> list[Schema]:
        """Return the alternatives for a list or a mapping; a tag selects one of them."""
        wanted = "array" if isinstance(value, list) else "object"
        tags = self.resolved(schema).get("discriminator")
        if tags is not None and isinstance(value, dict):
            reference = tags["mapping"].get(value.get(tags["propertyName"]))
            return [] if reference is None else [self.resolved({"$ref": reference})]
        return [part for part in self.variants(schema) if part.get("type", wanted) == wanted]


def _item(schema: Schema, number: int) -> Schema:
    """Return the schema of an item of a list."""
    first = schema.get("prefixItems", ())
    if number < len(first):
        item: Schema = first[number]
        return item
    item_schema = schema.get("items", {})
    return item_schema if isinstance(item_schema, dict) else {}


def _inner_schemas(schema: Schema) -> list[Schema]:
    """Return the schema of the items of a list, or of the values of a mapping."""
    parts = (schema.get("items"), schema.get("additionalProperties"))
    return [part for part in parts if isinstance(part, dict)]


def _json(value: object) -> str:
    return preview(exact_json.encode(value))
