"""The objects of one kind in a cluster in memory, with their field managers and watches."""

import copy
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from natsctl.model import documents
from natsctl.model.documents import Document, metadata_of
from natsctl.model.times import time_text
from natsctl.testing.fields import SERVERS_OWN, Path, leaves
from natsctl.testing.watched import WatchedObjects

MANAGER = "natsctl"  # the field manager of writes that replace a whole object

ObjectChange = tuple[Document | None, Document, int]  # before, after (or last), revision


class ClusterObjects(WatchedObjects[ObjectChange]):
    """The objects of one kind, their field managers, and the open watches."""

    def __init__(self) -> None:
        super().__init__()
        self.by_key: dict[str, Document] = {}
        self.managers: dict[str, dict[str, set[Path]]] = {}  # fields, by key and manager
        self.mutation: Callable[[Document], Document] | None = None
        self.applies = 0

    def copied(self) -> "ClusterObjects":
        """Return a copy without watches, for a write that is not stored."""
        copied = copy.copy(self)
        copied.by_key = dict(self.by_key)
        copied.managers = copy.deepcopy(self.managers)
        copied.watches = {}
        return copied

    def put(self, key: str, document: Document) -> Document:
        """Store the object; remove it if it is marked deleted and has no finalizer."""
        before = self.by_key.get(key)
        if self.mutation is not None:
            document = self.mutation(document)
        after = {**document, "metadata": {**metadata_of(document), **self._own(before, document)}}
        if before == after:
            return before
        if metadata_of(after).get("deletionTimestamp") and not documents.finalizers_of(after):
            self.by_key[key] = after
            return self.remove(key)
        self._next()
        after["metadata"] = {**metadata_of(after), "resourceVersion": str(self.revision)}
        self.by_key[key] = after
        self.notify((before, after, self.revision))
        return after

    def remove(self, key: str) -> Document:
        """Remove the object and return its last state."""
        self._next()
        last = self.by_key.pop(key)
        self.managers.pop(key, None)
        metadata = documents.without(metadata_of(last), "resourceVersion")
        self.notify((last, {**last, "metadata": metadata}, self.revision))
        return last

    def take_over(self, key: str, before: Document, after: Document) -> None:
        """Transfer the ownership of the fields that a whole write changes to `MANAGER`."""
        old, new = dict(leaves(before)), dict(leaves(after))
        changed = {path for path in new if path not in old or old[path] != new[path]}
        managers = self.managers.setdefault(key, {})
        for name in managers:
            managers[name] -= changed | (old.keys() - new.keys())
        managers.setdefault(MANAGER, set()).update(changed)

    def managed_fields(self, key: str) -> list[Document]:
        """Return the fields of each field manager."""
        managers = sorted(self.managers.get(key, {}).items())
        return [
            {"manager": name, "operation": "Apply", "fields": sorted(map(".".join, paths))}
            for name, paths in managers
        ]

    def _own(self, before: Document | None, after: Document) -> Document:
        """Return the metadata that only the server sets."""
        if before is None:
            return {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        known = {
            name: metadata_of(before)[name] for name in SERVERS_OWN if name in metadata_of(before)
        }
        marked = metadata_of(after).get("deletionTimestamp")
        if marked:
            known["deletionTimestamp"] = marked
        changed = any(
            before.get(name) != after.get(name)
            for name in (before.keys() | after.keys()) - {"metadata", "status"}
        )
        return {**known, "generation": int(str(known["generation"])) + changed}

    def _next(self) -> None:
        self.revision += 1
        self.writes += 1


def now() -> str:
    """Return the current time in the format of a server."""
    return time_text(datetime.now(UTC))
