"""What objects tell of things outside every store: external resources that are managed."""

from collections.abc import Iterator

from natsctl.core.insight.tree import Branch
from natsctl.managed.creation.creation import Creation
from natsctl.managed.names import CREATE_PENDING, AnnotationNames
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.readiness import ready, reason

KIND = "External"
UNNAMED = "(unnamed)"
UNKNOWN = "Unknown"

_TELLING = ("external-name", CREATE_PENDING)


def externals(document: Document) -> Iterator[Branch]:
    """Return the external resources that a managed object's annotations tell of, in any domain.

    `Unknown` is one of which nobody knows whether it was created; else its object says how it is.
    """
    told = documents.metadata_of(document).get("annotations")
    texts = told.items() if isinstance(told, dict) else ()
    annotations = {name: text for name, text in texts if isinstance(text, str)}
    domains = {key.rpartition("/")[0] for key in annotations if key.rpartition("/")[2] in _TELLING}
    for names in map(AnnotationNames, sorted(domains)):
        creation = Creation.of(annotations, names)
        created = None if creation.succeeded is None else creation.succeeded.at.isoformat()
        yield Branch(
            kind=KIND,
            key=annotations.get(names.external_name) or UNNAMED,
            ready=UNKNOWN if creation.unknown else ready(document),
            reason="CreationUnknown" if creation.unknown else reason(document),
            created=created or "",
        )
