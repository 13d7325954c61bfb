"""Returns a primary and the objects that it owns as a tree, from the tables."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from natsctl.core.informer import Informer
from natsctl.errors import InvalidObjectError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.readiness import UNKNOWN, ready, reason
from natsctl.model.store import Stored
from natsctl.telemetry.hiding import enumerated, hidden

MISSING = "Missing"
INVALID = "Invalid"
FINALIZERS_MAX = 5  # that a text names


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One object, and the objects that it owns."""

    kind: str  # its kind, as owner labels name it
    key: str  # its name within its kind
    bucket: str = ""  # the bucket in NATS that stores it; empty for other objects
    ready: str = UNKNOWN  # as `ready` returns it, or `Missing` or `Invalid` for a primary
    reason: str = ""  # the reason for `ready`; empty if it is not known
    revision: int | None = None  # the revision of the state; None if there is none
    created: str = ""  # its creation time (RFC 3339); empty if it is not known
    branches: tuple["Branch", ...] = ()  # the objects that it owns
    more: int = 0  # the number of further objects, which `branches` lacks

    @property
    def name(self) -> str:
        """The kind and the key, for people."""
        return f"{self.kind}/{self.key}"

    def limited(self, count: int) -> "Branch":
        """Return the tree with its first *count* branches; `more` counts the others."""
        unlisted = self.more + len(self.branches[count:])
        return msgspec.structs.replace(self, branches=self.branches[:count], more=unlisted)


def merged(trees: Sequence[Branch]) -> Branch:
    """Return one tree of what several members know, each of which has the values of its own keys.

    Of each object the tree has the branch that knows the most.
    """
    known: dict[tuple[str, str], Branch] = {}
    for tree_ in trees:
        for branch in tree_.branches:
            name = (branch.kind, branch.key)
            known[name] = max(known.get(name, branch), branch, key=_knowledge)
    top = max(trees, key=_knowledge)
    more = max(tree_.more for tree_ in trees)
    return msgspec.structs.replace(top, branches=tuple(known.values()), more=more)


def _knowledge(branch: Branch) -> tuple[bool, bool, int]:
    """Return how much is known of an object, to compare."""
    known = branch.ready not in (UNKNOWN, MISSING)
    return known, branch.revision is not None, len(branch.branches)


Beyond = Callable[[Document], Iterable[Branch]]
"""Returns the things outside of stores that a primary's document names."""


def tree(
    key: str,
    primary: Informer[Any],
    owned: Iterable[tuple[Kind[Any], Stored]] = (),
    beyond: Beyond = lambda _: (),
) -> Branch:
    """Return the primary *key*, which need not exist, with the objects that it owns.

    *owned* are its objects in stores; *beyond* returns things outside of stores.
    """
    branches = tuple(_branch(kind, stored) for kind, stored in owned)
    table, kind = primary.table, primary.table.kind
    newest, invalid = table.newest(key), table.invalid.get(key)
    if newest is None:
        primary_branch = Branch(kind=kind.name, key=key, bucket=_bucket(kind), ready=MISSING)
    else:
        primary_branch = _branch(kind, newest)
        branches += tuple(beyond(_document(kind, newest) or {}))
    if invalid is not None:
        text = hidden(str(invalid.error))
        primary_branch = msgspec.structs.replace(primary_branch, ready=INVALID, reason=text)
    return msgspec.structs.replace(primary_branch, branches=branches)


def _branch(kind: Kind[Any], stored: Stored) -> Branch:
    document = _document(kind, stored)
    created = documents.metadata_of(document or {}).get("creationTimestamp")
    return Branch(
        kind=kind.name,
        key=stored.key,
        bucket=_bucket(kind),
        ready=ready(document),
        reason=held_by(document) or reason(document),
        revision=stored.revision,
        created=created if isinstance(created, str) else "",
    )


def held_by(document: Document | None) -> str:
    """Return which finalizers hold an object that is being deleted; empty if none does."""
    finalizers = documents.finalizers_of(document or {})
    if not finalizers or not documents.metadata_of(document or {}).get("deletionTimestamp"):
        return ""
    return hidden(f"held by {enumerated(finalizers, FINALIZERS_MAX)}")


def _document(kind: Kind[Any], stored: Stored) -> Document | None:
    """Return the object's document; None if its value is not a document."""
    try:
        return None if kind.plain else documents.parse(stored.value)
    except InvalidObjectError:
        return None


def _bucket(kind: Kind[Any]) -> str:
    return kind.bucket if isinstance(kind, KvKind) else ""
