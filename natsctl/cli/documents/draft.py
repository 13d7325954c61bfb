"""The text of an object in an editor, and the object that the edited text describes."""

from collections.abc import Iterable

import msgspec
import yaml

from natsctl.cli.documents.parsing import parsed_yaml
from natsctl.cli.documents.values import DesiredObject, NewValue, value_of_document
from natsctl.cli.output.encoding import yaml_text
from natsctl.errors import UsageError
from natsctl.jetstream.bucket import Message
from natsctl.model import documents
from natsctl.model.documents import BOOKKEEPING, Document
from natsctl.model.store import Stored
from natsctl.operate.entries import ENVELOPE, described, is_object
from natsctl.telemetry.escaping import escaped


class Draft(msgspec.Struct, frozen=True):
    """The edited fields of an object, and the stored object as it was before."""

    base: Stored
    document: Document

    @classmethod
    def of(cls, base: Stored) -> "Draft":
        """Return a draft that changes nothing."""
        return cls(base, _visible(base))

    @property
    def document_before(self) -> Document:
        """The fields before they were edited."""
        return _visible(self.base)

    def unchanged(self, text: str) -> bool:
        """Return whether *text* describes the stored object."""
        try:
            return documents.same(_parsed(text), self.document_before)
        except UsageError:
            return False

    def edited(self, text: str) -> "Draft":
        """Return the draft with the fields in *text*; raises `UsageError` if they are invalid."""
        document = _parsed(text)
        hidden = [name for name in (*ENVELOPE, "status") if name in document]
        metadata = document.get("metadata")
        if isinstance(metadata, dict):
            hidden += [f"metadata.{name}" for name in BOOKKEEPING if name in metadata]
        if hidden and (is_object(document) or is_object(self.document_before)):
            raise UsageError(f"{', '.join(hidden)} cannot be changed here: leave it out")
        return Draft(self.base, document)

    @property
    def changes_fields(self) -> bool:
        """Return whether fields beside the metadata were changed."""
        return bool(self._changed().keys() - {"metadata"})

    def changed_value(self) -> NewValue:
        """Return the changed fields of an object, or the whole value if it is not an object."""
        return DesiredObject(self._changed()) if is_object(self.document) else self.new_value()

    def _changed(self) -> Document:
        before = self.document_before
        return {
            name: field
            for name, field in self.document.items()
            if name not in before or not documents.same(field, before[name])
        }

    def new_value(self) -> NewValue:
        """Return the value to store; raises `UsageError` if the draft has no spec and no value."""
        return value_of_document(self.document)


def editor_text(bucket: str, draft: Draft, *notes: str) -> str:
    """Return the text that the editor shows: the notes as comments, and the draft."""
    head = (
        f"{bucket}/{draft.base.key} at revision {draft.base.revision}.",
        "Save the file to store the object. An unchanged or empty file changes nothing.",
        *notes,
    )
    return with_comments(head, yaml_text(draft.document))


def with_comments(comments: Iterable[str], text: str) -> str:
    """Return the text below one comment line for each comment."""
    return "".join(f"# {escaped(comment)}\n" for comment in comments) + text.strip("\n") + "\n"


def without_comments(text: str) -> str:
    """Return the text without its first comments, and without empty lines at its ends."""
    lines = text.strip().splitlines()
    while lines and (lines[0].startswith("#") or not lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines)


def _visible(stored: Stored) -> Document:
    message = Message(stored.key, stored.revision, stored.value, marker=None, created="")
    fields = documents.without(described("", message), *ENVELOPE)
    if not is_object(fields):
        return fields
    metadata = documents.without(documents.metadata_of(fields), *BOOKKEEPING)
    other_fields = documents.without(fields, "metadata", "status")
    return {"metadata": metadata, **other_fields} if metadata else other_fields


def _parsed(text: str) -> Document:
    try:
        document = parsed_yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"this is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise UsageError("this is not a mapping: an object has fields such as spec")
    return documents.parse(documents.render(document))
