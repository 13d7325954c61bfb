"""Reading and writing one object, and what became of a write whose answer was lost."""

from natsctl.errors import NotFoundError, StoreTimeoutError
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.resources.codec import PARTIAL, ObjectDecoder
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.store import Stored

_SERVERS_OWN = ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields")


class Exchange:
    """Sends documents of one kind to the paths of its objects, and takes what is answered."""

    def __init__(self, wire: Wire, decoder: ObjectDecoder) -> None:
        self._wire = wire
        self._decoder = decoder

    async def read(self, path: str) -> Stored:
        """Return the object at *path* as it is now; raises `NotFoundError`."""
        reply = await self._wire.call("GET", path, accept=self._decoder.accept)
        return self._decoder.stored(reply.body)

    async def managed(self, path: str) -> bytes:
        """Return the metadata of the object at *path*, with its `managedFields`, as JSON."""
        return (await self._wire.call("GET", path, accept=PARTIAL.format(""))).body

    async def find(self, path: str) -> Stored | None:
        """Return the object at *path* as it is now, None where there is none."""
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
        safe: bool = False,
    ) -> Stored:
        """Return what the server made of the *document*; *safe* if it may be sent twice."""
        body = await self.answer(
            method,
            path,
            document,
            manager=manager,
            content_type=content_type,
            force=force,
            safe=safe,
        )
        return self.stored(body)

    async def answer(
        self,
        method: str,
        path: str,
        document: object,
        *,
        manager: str,
        content_type: str = "application/json",
        force: bool = False,
        safe: bool = False,
    ) -> bytes:
        """Return the same as the server sent it, with `managedFields`."""
        reply = await self._wire.call(
            method,
            path,
            query={"fieldManager": manager, **({"force": "true"} if force else {})},
            body=documents.render(document),
            content_type=content_type,
            accept=self._decoder.accept,
            safe=safe,
        )
        return reply.body

    def stored(self, body: bytes) -> Stored:
        """Return the object in an answer."""
        return self._decoder.stored(body)

    async def written(self, path: str, document: Document, unknown: StoreTimeoutError) -> Stored:
        """Return what is at *path* if it says what the *document* does; else raise *unknown*."""
        stored = await self.find(path)
        if stored is None or not took_effect(documents.parse(stored.value), document):
            raise unknown
        return stored


def with_metadata(document: Document, **metadata: str) -> Document:
    """Return the document with this in its metadata as well."""
    return {**document, "metadata": {**documents.metadata_of(document), **metadata}}


def took_effect(found: Document, wanted: Document) -> bool:
    """Say whether *found* says everything that was to be written; a status is written elsewhere."""
    metadata = documents.metadata_of(wanted)
    given = {name: value for name, value in metadata.items() if name not in _SERVERS_OWN}
    rest = {name: value for name, value in wanted.items() if name != "status"}
    said = {**rest, "metadata": given}
    return bool(documents.view(said, found) == said)
