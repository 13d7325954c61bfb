"""Groups the reads of dependents: the end of a batch stops the watches that it did not use."""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from natsctl.core.dependencies.dependency import Dependency
from natsctl.core.dependencies.watches import DependencyWatch, DependencyWatches
from natsctl.errors import QueryBatchInProgressError, QueryBatchNotStartedError

W = TypeVar("W", bound=Hashable)


class Batches(Generic[W]):
    """Batches of reads, at most one at a time for each dependent."""

    def __init__(self, watches: DependencyWatches[W]) -> None:
        self._watches = watches
        self._read: dict[W, set[Dependency[Any]]] = {}

    def __contains__(self, dependent: W) -> bool:
        return dependent in self._read

    def start(self, dependent: W) -> None:
        """Begin a batch; raises `QueryBatchInProgressError` if the last one has not ended."""
        if dependent in self._read:
            raise QueryBatchInProgressError(f"a query batch of {dependent} is in progress: end it")
        self._read[dependent] = set()

    async def read(self, dependent: W, dependency: Dependency[Any]) -> DependencyWatch[W]:
        """Make *dependent* depend on *dependency*, and return the watch to read from.

        Raises `QueryBatchNotStartedError` outside a batch, and the errors of
        `DependencyWatches.depend`.
        """
        try:
            self._read[dependent].add(dependency)
        except KeyError:
            raise QueryBatchNotStartedError(
                f"objects are read for {dependent} within a query batch only: start one"
            ) from None
        return await self._watches.depend(dependent, dependency)

    def end(self, dependent: W) -> None:
        """End the batch: *dependent* depends only on what the batch has read.

        Raises `QueryBatchNotStartedError` if no batch was started.
        """
        read = self._read.pop(dependent, None)
        if read is None:
            raise QueryBatchNotStartedError(f"no query batch of {dependent} was started")
        self._watches.keep_only(dependent, read)

    def abandon(self, dependent: W) -> None:
        """End a batch that may be incomplete: *dependent* keeps all its dependencies."""
        if self._read.pop(dependent, None) is None:
            raise QueryBatchNotStartedError(f"no query batch of {dependent} was started")
