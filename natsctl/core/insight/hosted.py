"""The base class of a controller that runs in a host: its stop and its reports."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from natsctl.core.cache.informer import Informer
from natsctl.core.insight.explain import Explanation, Status
from natsctl.core.insight.health import invalid_of
from natsctl.core.insight.measures import Measures, lags
from natsctl.core.insight.tree import Beyond, Branch
from natsctl.core.recording.document import Recording, Surface
from natsctl.core.recording.recordings import Recordings
from natsctl.core.recording.writing import recording_of
from natsctl.core.sync.host import Host
from natsctl.errors import StoreError
from natsctl.model.plans.plan import KeyPlan


class Hosted(ABC):
    """A controller that runs in a host.

    `synced` is set when every cache is synced and the syncs have begun.
    """

    name: str
    version: str = ""
    surface: Surface = "controller"

    def __init__(self, host: Host) -> None:
        self.synced = host.synced
        self._host = host

    @abstractmethod
    async def run(self) -> None:
        """Work until `stop`; returns when the syncs that have begun have ended.

        Raises the error that prevents the start, or that ends the controller for good.
        """

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[None]:
        """Open the stores and keep the caches equal to them, without syncing anything."""

    def stop(self) -> None:
        """Begin no more syncs; `run` returns when the syncs that have begun have ended."""
        self._host.stop()

    async def complete(self) -> None:
        """Wait until every cache is synced."""
        await self._host.caches_synced()

    @property
    def prepared(self) -> bool:
        """True once the stores are open and keys can be explained."""
        return bool(self._host.informers)

    @property
    def stopping(self) -> bool:
        """True after `stop` was called."""
        return self._host.stopping

    @property
    def idle(self) -> bool:
        """True if the syncs have begun and no key is ready, held, or waiting for a retry."""
        return self._host.idle

    @property
    def failure(self) -> StoreError | None:
        """The reason why a cache has no watch now; None if all have one."""
        return self._host.failure

    @property
    def sync_counts(self) -> tuple[int, int]:
        """The numbers of syncs and of failed syncs since the start."""
        return self._host.journal.syncs, self._host.journal.failures

    async def lags(self) -> dict[str, int]:
        """Return by how many revisions each cache is behind its store, by slot.

        Asks the stores, for a second at most. A store that does not answer is left out.
        """
        return await lags(self._host.informers)

    @property
    def recordings(self) -> Recordings | None:
        """The recordings of this process; None if it keeps none."""
        recorder = self._host.recorder
        return recorder if isinstance(recorder, Recordings) else None

    def recording(self, key: str, *, masked: bool) -> Recording | None:
        """Return the recording of the last failed sync of the key, or else of its last sync.

        A *masked* recording has no secrets. Returns None if there is no recording.
        """
        kept = None if self.recordings is None else self.recordings.newest(self.name, key)
        if kept is None:
            return None
        delivered = None if kept.delivery is None else kept.delivery.kind
        return recording_of(
            kept,
            self._host.informers,
            delivered or self._host.primaries[0].cache.kind,
            surface=self.surface,
            masked=masked,
            version=self.version,
            settings=self.replay_settings,
        )

    @property
    def replay_settings(self) -> Mapping[str, object]:
        """The settings that a replay needs."""
        return {}

    @property
    def informers(self) -> Mapping[str, Informer[Any]]:
        """The informers by slot, once the stores are open."""
        return self._host.informers

    def planned(self, key: str) -> KeyPlan | None:
        """Return what the syncs of the key would do; None if the controller does not only plan."""
        plan = self._host.plan
        return None if plan is None else plan.key_plan(key)

    @property
    def primaries(self) -> int:
        """The number of cached objects whose keys are synced."""
        return sum(len(informer.cache) for informer in self._host.primaries)

    def existing(self, keys: Collection[str]) -> int:
        """Return how many of these keys have a cached primary, valid or not."""
        caches = [informer.cache for informer in self._host.primaries]
        return len({key for cache in caches for key in keys if key in cache})

    def invalid(self) -> dict[str, str]:
        """Return why the newest state of each invalid primary is invalid, by key."""
        return invalid_of(self._host)

    @abstractmethod
    def holds(self, key: str) -> bool:
        """Return whether this process syncs the key now, and not another one."""

    @abstractmethod
    def hold_only(self, keys: Collection[str]) -> None:
        """Sync no other keys than these; call this before the controller runs."""

    @abstractmethod
    def resync(self, *keys: str) -> int:
        """Sync these keys soon; without keys, sync all keys after more urgent ones.

        Keys of other processes are ignored. Returns how many keys are enqueued.
        """

    @abstractmethod
    def explain(self, key: str) -> Explanation:
        """Return the state of a key, its place in the queue and its last syncs."""

    @abstractmethod
    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """Return the object with the objects that it owns, in stores and *beyond* them."""

    @abstractmethod
    def measures(self) -> Measures:
        """Return all measures since the start."""

    @abstractmethod
    def status(self) -> Status:
        """Return the state of the controller as a whole."""
