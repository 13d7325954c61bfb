"""Finds the objects that a controller made, in stores and in external systems."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from natsctl.model.kinds import Kind
from natsctl.testing.memory import MemoryStores
from natsctl.testing.simulation import properties
from natsctl.testing.simulation.objects import StoredObjects, store_of
from natsctl.testing.simulation.subject import Subject
from natsctl.testing.simulation.world.network import OWN_BUCKETS, Network
from natsctl.testing.simulation.world.stores import place_of

JETSTREAM = "jetstream"  # the place of streams and consumers


class Made:
    """The objects that the controller of a run made.

    Args:
        subject: the controller.
        network: knows the external systems, and the kinds that the controller has opened.
        stores: the stores of the run.
        ignored: buckets and fields that `result` leaves out.
        kept: buckets, and objects such as `trail/pier`, that `left` leaves out.
    """

    def __init__(
        self,
        subject: Subject,
        network: Network,
        stores: MemoryStores,
        ignored: Sequence[str],
        kept: Collection[str],
    ) -> None:
        self._subject = subject
        self._network = network
        self._stores = stores
        self._ignored = ignored
        self._kept = kept

    def result(self) -> dict[str, object]:
        """Return the objects to compare with those of another run."""
        result = properties.result_of(StoredObjects(self._stores), self._kinds, self._ignored)
        for name, state in self._network.externals.items():
            if name not in self._ignored:
                result |= properties.result_of_external(name, state)
        if JETSTREAM not in self._ignored:
            assets = self._stores.jetstream.configurations()
            result |= {f"{JETSTREAM}/{name}": config for name, config in assets.items()}
        return result

    def left(self) -> list[str]:
        """Return the names of all primaries, and of the objects that go with them."""
        kept = self._kept
        named = ((place, f"{place}/{name}") for place, name in self._names())
        return [name for place, name in named if place not in kept and name not in kept]

    def _names(self) -> Iterator[tuple[str, str]]:
        for kind in (*self._subject.primaries, *self._kinds):
            for key in store_of(self._stores, kind).keys():  # noqa: SIM118 - a store is no dict
                yield place_of(kind), key
        for name, state in self._network.externals.items():
            for resource in state.resources:
                yield name, resource
        for asset in self._stores.jetstream.configurations():
            yield JETSTREAM, asset

    @property
    def _kinds(self) -> list[Kind[Any]]:
        if self._subject.made is not None:
            return list(self._subject.made)
        places = {*map(place_of, self._subject.kinds), *OWN_BUCKETS}
        return [kind for place, kind in sorted(self._network.opened.items()) if place not in places]
