"""Reads the cached objects of one kind."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from natsctl.core.informer import Informer
from natsctl.errors import UsageError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeMetadata, joined
from natsctl.resource.event import Key

T = TypeVar("T")


class ResourceStore(Generic[T]):
    """The newest objects that a resource's watch has received; read-only.

    Every read decodes its result from memory, so callers cannot change each other's results. The
    seed calls this `Store`; in natsctl, a store is the system that keeps objects.
    """

    def __init__(self, informer: Informer[T]) -> None:
        self._cache = informer.cache
        self._kind: Kind[T] = informer.cache.kind

    def __len__(self) -> int:
        return len(self._cache)

    def get(self, obj: T) -> T | None:
        """Return the newest state of an object in a cluster, or None if it does not exist.

        Raises `UsageError` for an object without its own key, as all objects in NATS.
        """
        return self.get_by_key(self._key_of(obj))

    def get_by_key(self, key: str) -> T | None:
        """Return the object, or None if it does not exist."""
        stored = self._cache.get(key)
        return None if stored is None else self._kind.decode(stored.value)

    def iter_keys(self) -> Iterator[Key]:
        """Return the keys of all present objects; later changes do not affect the iterator."""
        return map(Key, tuple(self._cache.keys()))

    def list(self) -> list[T]:
        """Return all objects."""
        states = map(self._cache.get, tuple(self._cache.keys()))
        return [self._kind.decode(state.value) for state in states if state is not None]

    def _key_of(self, obj: T) -> str:
        metadata = None if self._kind.plain else self._kind.metadata_of(obj)
        if not isinstance(metadata, KubeMetadata):
            raise UsageError(
                f"objects of {self._kind.name} do not contain their key: use get_by_key"
            )
        return joined(metadata.namespace, metadata.name)
