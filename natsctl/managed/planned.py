"""Observes an external resource for real in a plan, and only records the other calls."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from natsctl.core.planning.record import Effect, PlanRecord, current_plan, place_of
from natsctl.managed.external import ExternalClient, ExternalClientFns
from natsctl.managed.objects import Managed

T = TypeVar("T")


def planned_client(client: ExternalClient[T]) -> ExternalClient[T]:
    """Return the client, or in a plan one that only observes."""
    plan = current_plan.get()
    if plan is None:
        return client
    return ExternalClientFns(
        observe_fn=client.observe,
        create_fn=_recorded(plan, "create"),
        update_fn=_recorded(plan, "update"),
        delete_fn=_recorded(plan, "delete"),
    )


def _recorded(plan: PlanRecord, verb: Effect) -> Callable[[Managed[T]], Awaitable[None]]:
    """Return a function that records that the resource would be created, updated or deleted."""

    async def record(managed: Managed[T]) -> None:
        plan.called(place_of(managed.kind), managed.kind, managed.key, verb)

    return record
