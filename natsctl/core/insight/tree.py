"""What was made for a primary, and how each thing is: read from the caches, for people."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from natsctl.core.cache.informer import Informer
from natsctl.errors import InvalidObjectError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.readiness import UNKNOWN, ready, reason
from natsctl.model.store import Stored
from natsctl.telemetry.hiding import hidden

MISSING = "Missing"
INVALID = "Invalid"


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One object, and what was made for it.

    Attributes:
        kind: what it is, as owner labels say it.
        key: its name within its kind.
        bucket: where in NATS it is kept; empty for what is kept elsewhere.
        ready: how it is; `Missing` for a primary that does not exist, `Invalid` where its newest
            state is no valid object, else as `natsctl.model.readiness.ready` says.
        reason: why, where that is known.
        revision: of the state that is shown; None where there is none.
        created: since when it is so (RFC 3339); empty where that is not known.
        branches: what was made for it.
        more: how many further ones there are, of which nothing is told.
    """

    kind: str
    key: str
    bucket: str = ""
    ready: str = UNKNOWN
    reason: str = ""
    revision: int | None = None
    created: str = ""
    branches: tuple["Branch", ...] = ()
    more: int = 0

    def limited(self, count: int) -> "Branch":
        """Return the tree with its first *count* branches; `more` counts the others."""
        more = self.more + len(self.branches[count:])
        return msgspec.structs.replace(self, branches=self.branches[:count], more=more)


Beyond = Callable[[Document], Iterable[Branch]]
"""Says what a primary's document tells of things that no store keeps."""


def tree(
    key: str,
    primary: Informer[Any],
    owned: Iterable[tuple[Kind[Any], Stored]] = (),
    beyond: Beyond = lambda _: (),
) -> Branch:
    """Return the primary *key*, whether it exists or not, with the objects that it owns.

    *owned* are its objects in stores, *beyond* finds those that no store keeps.
    """
    made = tuple(_branch(kind, stored) for kind, stored in owned)
    cache, kind = primary.cache, primary.cache.kind
    newest, invalid = cache.newest(key), cache.invalid.get(key)
    if newest is None:
        top = Branch(kind=kind.name, key=key, bucket=_bucket(kind), ready=MISSING)
    else:
        top = _branch(kind, newest)
        made += tuple(beyond(_document(kind, newest) or {}))
    if invalid is not None:
        top = msgspec.structs.replace(top, ready=INVALID, reason=hidden(str(invalid.error)))
    return msgspec.structs.replace(top, branches=made)


def _branch(kind: Kind[Any], stored: Stored) -> Branch:
    document = _document(kind, stored)
    created = documents.metadata_of(document or {}).get("creationTimestamp")
    return Branch(
        kind=kind.name,
        key=stored.key,
        bucket=_bucket(kind),
        ready=ready(document),
        reason=reason(document),
        revision=stored.revision,
        created=created if isinstance(created, str) else "",
    )


def _document(kind: Kind[Any], stored: Stored) -> Document | None:
    """Return the object's document; None where it has none that says how it is."""
    try:
        return None if kind.plain else documents.parse(stored.value)
    except InvalidObjectError:
        return None


def _bucket(kind: Kind[Any]) -> str:
    return kind.bucket if isinstance(kind, KvKind) else ""
