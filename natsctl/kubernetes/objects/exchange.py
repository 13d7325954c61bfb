"""Reads and writes single objects, and reads a write back if its response was lost."""

from natsctl.errors import NotFoundError, StoreTimeoutError
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.resources.codec import PARTIAL, ObjectDecoder
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.store import Stored


class Exchange:
    """Sends documents of one kind and decodes the responses."""

    def __init__(self, wire: Wire, decoder: ObjectDecoder) -> None:
        self._wire = wire
        self._decoder = decoder

    async def read(self, path: str) -> Stored:
        """Return the object at *path*; raises `NotFoundError`."""
        reply = await self._wire.call("GET", path, accept=self._decoder.accept)
        return self._decoder.stored(reply.body)

    async def read_metadata(self, path: str) -> bytes:
        """Return the metadata of the object at *path*, including `managedFields`, as JSON."""
        return (await self._wire.call("GET", path, accept=PARTIAL.format(""))).body

    async def find(self, path: str) -> Stored | None:
        """Return the object at *path*, or None if it does not exist."""
        try:
            return await self.read(path)
        except NotFoundError:
            return None

    async def send(
        self,
        method: str,
        path: str,
        document: object,
        *,
        manager: str,
        content_type: str = "application/json",
        force: bool = False,
        dry_run: bool = False,
        safe: bool = False,
    ) -> bytes:
        """Send *document* and return the response body; *safe* permits retries."""
        query = {"fieldManager": manager}
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        reply = await self._wire.call(
            method,
            path,
            query=query,
            body=documents.render(document),
            content_type=content_type,
            accept=self._decoder.accept,
            safe=safe,
        )
        return reply.body

    def decode(self, body: bytes) -> Stored:
        """Decode the object in the response to a write."""
        return self._decoder.sent(body)

    async def read_back(self, path: str, document: Document, unknown: StoreTimeoutError) -> Stored:
        """Return the object at *path* if it has the fields of *document*; else raise *unknown*."""
        stored = await self.find(path)
        if stored is None or not took_effect(documents.parse(stored.value), document):
            raise unknown
        return stored


def with_metadata(document: Document, **metadata: str) -> Document:
    """Return the document with these fields added to its metadata."""
    return {**document, "metadata": {**documents.metadata_of(document), **metadata}}


def took_effect(stored: Document, document: Document) -> bool:
    """Return whether *stored* has every field of *document*, apart from the status."""
    desired = {name: value for name, value in document.items() if name != "status"}
    written = documents.without_metadata(desired, documents.SERVERS_OWN)
    return bool(documents.view(written, stored) == written)
