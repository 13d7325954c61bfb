"""Plans: runs code over stores that keep its writes in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from natsctl.core.planning.overlay import Revisions
from natsctl.core.planning.planning_stores import PlanningManifestStores, PlanningStores
from natsctl.core.planning.record import PlanRecord, current_plan
from natsctl.model.store import ManifestStores, Stores


class Planned(msgspec.Struct, frozen=True):
    """The stores of a plan, and the record of the writes of one controller."""

    record: PlanRecord
    nats: PlanningStores
    kube: PlanningManifestStores | None

    @property
    def settled(self) -> bool:
        """True if every watch has delivered every planned write."""
        return self.nats.settled and (self.kube is None or self.kube.settled)

    def of_another(
        self, key_of: Callable[[], str], *, cluster: ManifestStores | None = None
    ) -> "Planned":
        """Return the same planned states with a record for another controller.

        *cluster* is the cluster of the other controller if this plan has none.
        """
        record = PlanRecord(key_of, continuous=self.record.continuous)
        kube = None if self.kube is None else self.kube.recorded(record)
        if kube is None and cluster is not None:
            kube = PlanningManifestStores(cluster, record, Revisions())
        return Planned(record, self.nats.recorded(record), kube)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Make `natsctl.planning()` True in the context, for this controller."""
        token = current_plan.set(self.record)
        try:
            yield
        finally:
            current_plan.reset(token)


def planned(
    *,
    nats: Stores,
    kube: ManifestStores | None,
    key_of: Callable[[], str],
    continuous: bool = False,
) -> Planned:
    """Return stores over *nats* and *kube* whose writes are recorded and not stored.

    *key_of* returns the key of the present sync. See `PlanRecord` about *continuous* plans.
    """
    record, revisions = PlanRecord(key_of, continuous=continuous), Revisions()
    return Planned(
        record,
        PlanningStores(nats, record, revisions),
        None if kube is None else PlanningManifestStores(kube, record, revisions),
    )
