"""Plans: runs code over stores that keep its writes in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from natsctl.core.planning.overlay import Revisions
from natsctl.core.planning.record import PlanRecord, current_plan
from natsctl.core.planning.stores import PlanningManifestStores, PlanningStores
from natsctl.model.store import ManifestStores, Stores


class Planned(msgspec.Struct, frozen=True):
    """The stores of a plan, and the record of their writes."""

    record: PlanRecord
    nats: PlanningStores
    kube: PlanningManifestStores | None

    @property
    def settled(self) -> bool:
        """True if every watch has delivered every planned write."""
        return self.nats.settled and (self.kube is None or self.kube.settled)


@contextmanager
def planned(
    *,
    nats: Stores,
    kube: ManifestStores | None,
    key_of: Callable[[], str],
    retries: bool = False,
) -> Iterator[Planned]:
    """Yield stores over *nats* and *kube* whose writes are recorded and not stored.

    In the context, `planning()` is True. *key_of* returns the key of the present sync;
    *retries* is whether sync loops retry failed keys.
    """
    record, revisions = PlanRecord(key_of, retries=retries), Revisions()
    token = current_plan.set(record)
    try:
        yield Planned(
            record,
            PlanningStores(nats, record.wrote, revisions),
            None if kube is None else PlanningManifestStores(kube, record.wrote, revisions),
        )
    finally:
        current_plan.reset(token)
