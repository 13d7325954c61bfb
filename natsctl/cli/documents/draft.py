"""What a person sees of an object in an editor, and what they mean by what they have made of it."""

from collections.abc import Iterable

import msgspec
import yaml

from natsctl.cli.documents.parsing import parsed_yaml
from natsctl.cli.documents.values import Given, of_document
from natsctl.cli.output.encoding import yaml_text
from natsctl.cli.output.entries import ENVELOPE, described, is_object
from natsctl.errors import UsageError
from natsctl.jetstream.bucket.bucket import Message
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.store import Stored
from natsctl.telemetry.escaping import escaped

HIDDEN = ("generation", "finalizers", "uid", "deletionTimestamp")  # natsctl keeps them right


class Draft(msgspec.Struct, frozen=True):
    """An object as it is to be: `document`, made of `base`."""

    base: Stored
    document: Document

    @classmethod
    def of(cls, base: Stored) -> "Draft":
        """Return what is stored, as a draft that changes nothing."""
        return cls(base, _visible(base))

    @property
    def document_before(self) -> Document:
        """What the draft was made of."""
        return _visible(self.base)

    def unchanged(self, text: str) -> bool:
        """Say whether *text* means what is stored."""
        try:
            return documents.same(_parsed(text), self.document_before)
        except UsageError:
            return False

    def saying(self, text: str) -> "Draft":
        """Return the draft as *text* has it; raises `UsageError` that says what is wrong there."""
        document = _parsed(text)
        hidden = [name for name in (*ENVELOPE, "status") if name in document]
        metadata = document.get("metadata")
        if isinstance(metadata, dict):
            hidden += [f"metadata.{name}" for name in HIDDEN if name in metadata]
        if hidden and (is_object(document) or is_object(self.document_before)):
            raise UsageError(f"{', '.join(hidden)} cannot be changed here: leave it out")
        return Draft(self.base, document)

    def given(self) -> Given:
        """Return what is to be stored; raises `UsageError` where it is neither object nor value."""
        return of_document(self.document)


def shown(bucket: str, draft: Draft, *told: str) -> str:
    """Return the file that a person edits."""
    head = (
        f"{bucket}/{draft.base.key} at revision {draft.base.revision}.",
        "Save it to store it; leave it as it is, or empty, and nothing changes.",
        *told,
    )
    return written(head, yaml_text(draft.document))


def written(comments: Iterable[str], text: str) -> str:
    """Return the text with comments before it, a line each."""
    return "".join(f"# {escaped(comment)}\n" for comment in comments) + text.strip("\n") + "\n"


def body(text: str) -> str:
    """Return the text without the comments before it, nor empty lines at its ends."""
    lines = text.strip().splitlines()
    while lines and (lines[0].startswith("#") or not lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines)


def _visible(stored: Stored) -> Document:
    message = Message(stored.key, stored.revision, stored.value, marker=None, created="")
    found = {k: v for k, v in described("", message).items() if k not in ENVELOPE}
    if not is_object(found):
        return found
    metadata = {k: v for k, v in documents.metadata_of(found).items() if k not in HIDDEN}
    rest = {k: v for k, v in found.items() if k not in {"metadata", "status"}}
    return {"metadata": metadata, **rest} if metadata else rest


def _parsed(text: str) -> Document:
    try:
        document = parsed_yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"this is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise UsageError("this is not a mapping, as an object is")
    return documents.parse(documents.render(document))
