"""Adds external resources and the times of revisions, which no cache has, to a tree of objects."""

from collections.abc import Iterator

from msgspec.structs import replace

from natsctl.core.tree import Branch
from natsctl.errors import StoreError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection
from natsctl.managed.links import CREATE_PENDING, AnnotationNames, CreationLink, Mark
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.readiness import ready, reason
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

KIND = "External"
UNNAMED = "(unnamed)"
UNKNOWN = "Unknown"
DATED_MAX = 100  # objects whose times are read

_LINKS = ("external-name", CREATE_PENDING)


def externals(document: Document) -> Iterator[Branch]:
    """Return the external resources that a managed object's annotations name, in any domain.

    A resource is `Unknown` if its creation began and no result was recorded. Otherwise it is as
    ready as its object.
    """
    texts = documents.annotations_of(document).items()
    annotations = {name: text for name, text in texts if isinstance(text, str)}
    domains = {key.rpartition("/")[0] for key in annotations if key.rpartition("/")[2] in _LINKS}
    for names in map(AnnotationNames, sorted(domains)):
        link = CreationLink.of(annotations, names)
        why = "CreationUnknown" if link.unknown else reason(document)
        if link.adopted and why in ("", "Available"):
            why = "Adopted"
        yield Branch(
            kind=KIND,
            key=annotations.get(names.external_name) or UNNAMED,
            ready=UNKNOWN if link.unknown else ready(document),
            reason=why,
            created=Mark.parse(link.succeeded).time.isoformat() if link.succeeded else "",
        )


async def dated(connection: Connection, top: Branch) -> Branch:
    """Return the tree with the times of objects in NATS, read from the leaders of their buckets.

    At most `DATED_MAX` objects get a time. A time stays empty if the leader does not answer.
    """
    stored = [branch for branch in (top, *top.branches) if branch.bucket and branch.revision]
    times: dict[tuple[str, int], str] = {}
    for bucket in {branch.bucket for branch in stored[:DATED_MAX]}:
        keys = [branch.key for branch in stored[:DATED_MAX] if branch.bucket == bucket]
        try:
            messages = await Bucket(connection, bucket).newest(keys)
        except StoreError as error:
            log.debug("cannot read the times of objects", bucket=bucket, error=error)
        else:
            times |= {(bucket, message.revision): message.created for message in messages}
    return _with_times(top, times)


def _with_times(branch: Branch, times: dict[tuple[str, int], str]) -> Branch:
    created = times.get((branch.bucket, branch.revision or 0), branch.created)
    branches = tuple(_with_times(child, times) for child in branch.branches)
    return replace(branch, created=created, branches=branches)
