"""Validates the objects that a user stores against the published schema of their bucket."""

from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer

from natsctl.cli.documents.values import DesiredObject, NewValue, RawValue
from natsctl.cli.output.terminal import write_notice
from natsctl.cli.schemas.faults import InvalidField, faults
from natsctl.cli.schemas.fields import Fields, UnknownField
from natsctl.cli.schemas.published import schema_for
from natsctl.daemon.published import published_schemas
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import DECODE_ERRORS, InvalidObjectError, StoreError
from natsctl.jetstream.connection import Connection
from natsctl.model import exact_json
from natsctl.model.schemas.kind_schema import KindSchema

SPEC, STATUS = "spec", "status"


class Validate(Enum):
    """The treatment of an object that does not match its schema."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"


ValidateOption = Annotated[
    Validate,
    typer.Option(
        "--validate",
        help="Check the object against its published schema: strict refuses an invalid object, "
        "warn stores it with a warning, ignore does not check",
    ),
]


class Validator:
    """Checks the objects of one bucket.

    Args:
        schemas: the published schemas of the bucket; without any, every object is accepted.
        validate: whether an invalid object is refused.
    """

    def __init__(self, bucket: str, schemas: Sequence[KindSchema], validate: Validate) -> None:
        self._bucket = bucket
        self._schemas = schemas
        self._validate = validate

    @classmethod
    async def of(cls, connection: Connection, bucket: str, validate: Validate) -> "Validator":
        """Return the validator of a bucket.

        A notice names the reason if the schemas cannot be read; nothing is checked then.
        """
        schemas: list[KindSchema] = []
        if validate is not Validate.IGNORE:
            try:
                schemas = await published_schemas(connection, bucket)
            except StoreError as error:
                write_notice(f"warning: {bucket} is not validated: {error}")
        return cls(bucket, schemas, validate)

    def check(self, key: str, new: NewValue) -> int | None:
        """Check the fields that a user gives, and warn of unknown ones.

        Returns the number of the version of the type that the fields match; None if it is unknown.
        Raises `InvalidObjectError` that names the faults, if an invalid object is refused.
        """
        schema, document = schema_for(self._schemas, key), _document_of(new)
        if schema is None:
            return None
        invalid = [fault for fault in faults(schema.schema, document) if _is_given(fault, document)]
        refused = {fault.path for fault in invalid}
        for unknown in Fields(schema.schema).unknown(document):
            if unknown.path not in refused and _is_own(unknown):
                hint = did_you_mean(unknown.name, unknown.known)
                self._warn(key, f"{unknown.path} is unknown{hint} (schema of {schema.source})")
        self._reject(key, schema, invalid)
        return None if invalid else schema.version

    def check_new(self, key: str, new: NewValue) -> None:
        """Check that a new object has every required field; raises as `check` does."""
        schema, document = schema_for(self._schemas, key), _document_of(new)
        if schema is not None:
            missing = faults(schema.schema, document)
            self._reject(key, schema, [fault for fault in missing if _is_missing(fault, document)])

    def _reject(self, key: str, schema: KindSchema, invalid: Sequence[InvalidField]) -> None:
        """Raise `InvalidObjectError` that names the faults, or warn of each."""
        message = f"not a valid {schema.kind} of {schema.source}"
        if invalid and self._validate is Validate.STRICT:
            first_fault, *later_faults = map(str, invalid)
            lines = (
                "\n".join((f"{message}:", first_fault, *later_faults))
                if later_faults
                else f"{message}: {first_fault}"
            )
            raise InvalidObjectError(lines)
        for fault in invalid:
            self._warn(key, f"{message}: {fault}")

    def _warn(self, key: str, text: str) -> None:
        write_notice(f"warning: {self._bucket}/{key}: {text}")


def _document_of(new: NewValue) -> object:
    """Return the JSON that *new* stores; bytes that are no JSON are a text."""
    match new:
        case DesiredObject(document):
            return document
        case RawValue(value):
            try:
                return exact_json.decode(value)
            except DECODE_ERRORS:
                return value.decode(errors="backslashreplace")


def _is_own(unknown: UnknownField) -> bool:
    """Return whether the user may have misspelt the field.

    A type without a field `spec` permits any spec, and natsctl does not store the status.
    """
    return unknown.first != STATUS and unknown.path != SPEC


def _is_given(fault: InvalidField, document: object) -> bool:
    """Return whether the fault is in a field of the document, apart from the status."""
    if not isinstance(document, dict) or not fault.path:
        return True
    return fault.first in document and fault.first != STATUS


def _is_missing(fault: InvalidField, document: object) -> bool:
    """Return whether the fault is a missing field of the whole document, apart from the status."""
    is_given = _is_given(fault, document)
    return not is_given and isinstance(document, dict) and fault.first != STATUS
