"""Server-side apply: what a manifest makes of an object, and of which."""

from natsctl.errors import (
    ConflictError,
    FieldConflictError,
    InvalidObjectError,
    StoreError,
    StoreTimeoutError,
)
from natsctl.kubernetes.objects.exchange import Exchange, with_metadata
from natsctl.kubernetes.objects.managers import JSON_PATCH, takeover
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.managed_fields import same_family
from natsctl.model.store import Stored

APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML
NO_REVISION = "1"  # of an empty etcd: no object ever has it
REVISION_REFUSED = "resourceVersion should not be set"  # in a creation, say some registries

_SERVERS_OWN = ("resourceVersion", "uid", "managedFields")


class Applier:
    """Applies manifests to the objects of one kind.

    A creation takes one request. Its patch names a revision that no object has: where there is
    no object, the server makes one and gives it a revision of its own; where there is one, it
    says that it has changed.

    No `fieldValidation` is asked for: the server refuses an apply of fields that a schema does
    not know by itself, but of a custom resource it drops them with a warning.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._takes_revision = True  # the patch of a creation, as far as we know

    async def apply(
        self, path: str, manifest: Document, *, manager: str, uid: str, force: bool
    ) -> Stored:
        """See `ManifestStore.apply`; *path* is the object's."""
        metadata = documents.metadata_of(manifest)
        given = {name: value for name, value in metadata.items() if name not in _SERVERS_OWN}
        document: Document = {**manifest, "metadata": given}
        if uid:
            return await self._change(path, with_metadata(document, uid=uid), manager, force=force)
        try:
            return await self._create(path, document, manager)
        except StoreTimeoutError as unknown:
            return await self._exchange.written(path, document, unknown)

    async def _change(self, path: str, document: Document, manager: str, *, force: bool) -> Stored:
        """Apply to the object with the document's uid, and to no other."""
        try:
            return await self._inherit(path, document, manager, force=force)
        except InvalidObjectError as refused:
            uid = documents.metadata_of(document)["uid"]
            found = await self._exchange.find(path)
            live = None if found is None else documents.parse(found.value)
            if live is None or documents.metadata_of(live).get("uid") != uid:
                # how the server puts it: uids are immutable
                raise ConflictError(f"{path} is no more the object {uid}") from refused
            allocated = _with_address(document, live)
            if allocated is None:
                raise
            return await self._inherit(path, allocated, manager, force=force)

    async def _inherit(self, path: str, document: Document, manager: str, *, force: bool) -> Stored:
        """Apply, once more if that shows fields of a former manager of the same family."""
        try:
            body = await self._answer(path, document, manager, force=force, safe=True)
        except FieldConflictError as conflict:
            if not all(same_family(manager, other) for other in conflict.managers):
                raise
            body = await self._exchange.managed(path)
        patch = takeover(body, manager)
        if not patch:
            return self._exchange.stored(body)
        await self._exchange.answer("PATCH", path, patch, manager=manager, content_type=JSON_PATCH)
        return await self._patch(path, document, manager, force=force, safe=True)

    async def _create(self, path: str, document: Document, manager: str) -> Stored:
        """Apply where there is no object."""
        if self._takes_revision:
            created = await self._create_marked(path, document, manager)
            if created is not None:
                return created
        if await self._uid(path) is not None:
            raise ConflictError(f"{path} exists")
        return await self._patch(path, document, manager)

    async def _create_marked(self, path: str, document: Document, manager: str) -> Stored | None:
        """Apply in one request; None where there was an object that is gone by now.

        And where the server refuses a creation that names a revision, as it does for Services:
        then this is not tried again.
        """
        marked = with_metadata(document, resourceVersion=NO_REVISION)
        try:
            # by force, or the server would speak of managers before it speaks of the revision
            return await self._patch(path, marked, manager, force=True)
        except ConflictError as conflict:
            if await self._uid(path) is not None:
                raise ConflictError(f"{path} exists") from conflict
        except StoreError as refused:
            if REVISION_REFUSED not in str(refused):
                raise
            self._takes_revision = False
        return None

    async def _patch(
        self,
        path: str,
        document: Document,
        manager: str,
        *,
        force: bool = False,
        safe: bool = False,
    ) -> Stored:
        body = await self._answer(path, document, manager, force=force, safe=safe)
        return self._exchange.stored(body)

    async def _answer(
        self, path: str, document: Document, manager: str, *, force: bool, safe: bool
    ) -> bytes:
        return await self._exchange.answer(
            "PATCH",
            path,
            document,
            manager=manager,
            content_type=APPLY_PATCH,
            force=force,
            safe=safe,
        )

    async def _uid(self, path: str) -> object:
        """Return which object is there now, None where there is none."""
        stored = await self._exchange.find(path)
        return stored and documents.metadata_of(documents.parse(stored.value)).get("uid")


def _with_address(document: Document, live: Document) -> Document | None:
    """Return a Service's manifest with the address in place of an empty `clusterIP`, if it has one.

    At a creation, empty means that the server allocates an address. Older servers refuse it in
    every later apply: the address cannot be unset.
    """
    wanted, spec = document.get("spec"), live.get("spec")
    if document.get("kind") != "Service" or not isinstance(wanted, dict):
        return None
    if wanted.get("clusterIP") != "" or not isinstance(spec, dict) or not spec.get("clusterIP"):
        return None
    return {**document, "spec": {**wanted, "clusterIP": spec["clusterIP"]}}
