"""Finds the objects that a controller made, in stores and in external systems."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from natsctl.model.kinds import Kind
from natsctl.testing.memory import MemoryStores
from natsctl.testing.simulation import properties
from natsctl.testing.simulation.objects import StoredObjects, store_of
from natsctl.testing.simulation.subject import Subject
from natsctl.testing.simulation.world.network import OWN_BUCKETS, Network
from natsctl.testing.simulation.world.stores import place_of

JETSTREAM = "jetstream"  # the place of streams and consumers


@dataclass(frozen=True)
class Made:
    """The objects that the controller of a run made.

    `result` leaves out the *ignored* buckets and fields. `left` leaves out the *kept* buckets, and
    objects such as `trail/pier`.
    """

    subject: Subject
    network: Network
    stores: MemoryStores
    ignored: Sequence[str]
    kept: Collection[str]
    given: Collection[str] = ()  # the places of objects that users wrote

    def result(self) -> dict[str, object]:
        """Return the objects to compare with those of another run."""
        result = properties.result_of(StoredObjects(self.stores), self._kinds, self.ignored)
        for name, state in self.network.externals.items():
            if name not in self.ignored:
                result |= properties.result_of_external(name, state)
        if JETSTREAM not in self.ignored:
            assets = self.stores.jetstream.configurations()
            result |= {f"{JETSTREAM}/{name}": config for name, config in assets.items()}
        return result

    def left(self) -> list[str]:
        """Return the names of all primaries, and of the objects that go with them."""
        named = ((place, f"{place}/{name}") for place, name in self._names())
        return [name for place, name in named if place not in self.kept and name not in self.kept]

    def _names(self) -> Iterator[tuple[str, str]]:
        for kind in (*self.subject.primaries, *self._kinds):
            for key in store_of(self.stores, kind).keys():  # noqa: SIM118 - a store is no dict
                yield place_of(kind), key
        for name, state in self.network.externals.items():
            for resource in state.resources:
                yield name, resource
        for asset in self.stores.jetstream.configurations():
            yield JETSTREAM, asset

    @property
    def _kinds(self) -> list[Kind[Any]]:
        if self.subject.made is not None:
            return list(self.subject.made)
        places = {*map(place_of, self.subject.kinds), *OWN_BUCKETS, *self.given}
        return [kind for place, kind in sorted(self.network.opened.items()) if place not in places]
