"""Observes an external resource for real in a plan, and only records the other calls."""

from typing import Generic, TypeVar

from natsctl.core.planning.record import PlanRecord, current_plan, place_of
from natsctl.managed.external import ExternalClient, Observation
from natsctl.managed.objects import Managed

T = TypeVar("T")


class PlannedClient(Generic[T]):
    """An `ExternalClient` for a plan."""

    def __init__(self, client: ExternalClient[T], plan: PlanRecord) -> None:
        self._client = client
        self._plan = plan

    async def observe(self, managed: Managed[T]) -> Observation:
        """See `ExternalClient.observe`."""
        return await self._client.observe(managed)

    async def create(self, managed: Managed[T]) -> None:
        """Record that the resource would be created."""
        self._plan.called(place_of(managed.kind), managed.kind, managed.key, "create")

    async def update(self, managed: Managed[T]) -> None:
        """Record that the resource would be updated."""
        self._plan.called(place_of(managed.kind), managed.kind, managed.key, "update")

    async def delete(self, managed: Managed[T]) -> None:
        """Record that the resource would be deleted."""
        self._plan.called(place_of(managed.kind), managed.kind, managed.key, "delete")


def planned_client(client: ExternalClient[T]) -> ExternalClient[T]:
    """Return the client, or in a plan one that only observes."""
    plan = current_plan.get()
    return client if plan is None else PlannedClient(client, plan)
