"""Reading the last seen objects of one kind."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from natsctl.core.cache.cache import Cache
from natsctl.errors import UsageError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeMetadata, joined
from natsctl.resource.event import Key

T = TypeVar("T")


class ResourceStore(Generic[T]):
    """The objects of a resource as its watch last showed them; read-only.

    (The seed's `Store`. In natsctl that word is for where objects are kept.) Every read is from
    memory, of this moment, and decodes what it returns: nobody can change what others read.
    """

    def __init__(self, cache: Cache[T]) -> None:
        self._cache = cache
        self._kind: Kind[T] = cache.kind

    def __len__(self) -> int:
        return len(self._cache)

    def get(self, obj: T) -> T | None:
        """Return the newest state of a cluster's object, None where it does not exist any more.

        Raises `UsageError` for an object that does not say its own key: in NATS, none does.
        """
        return self.get_by_key(self._key_of(obj))

    def get_by_key(self, key: str) -> T | None:
        """Return the object, None where it does not exist."""
        stored = self._cache.get(key)
        return None if stored is None else self._kind.decode(stored.value)

    def iter_keys(self) -> Iterator[Key]:
        """Return the keys of all objects that there are now, however slowly they are iterated."""
        return map(Key, tuple(self._cache.keys()))

    def list(self) -> list[T]:
        """Return all objects."""
        stored = (self._cache.get(key) for key in self._cache.keys())  # noqa: SIM118 - no mapping
        return [self._kind.decode(each.value) for each in stored if each is not None]

    def _key_of(self, obj: T) -> str:
        metadata = None if self._kind.plain else self._kind.metadata_of(obj)
        if not isinstance(metadata, KubeMetadata):
            raise UsageError(f"objects of {self._kind.name} do not say their key: use get_by_key")
        return joined(metadata.namespace, metadata.name)
