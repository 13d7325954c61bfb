"""Clients of external systems, and the connecters that make them."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from natsctl.core.sync import awaitable
from natsctl.errors import HandlerError
from natsctl.managed.objects import Managed
from natsctl.telemetry.hiding import shown

T = TypeVar("T")


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of observing an external resource (seed: `ExternalObservation`).

    Args:
        exists: the resource exists, typically under the object's external name.
        up_to_date: an update would change nothing.
        late_initialized: the client set unset fields of `managed.spec`, which are to be stored.
        diff: a description of the differences, which plan, events, status and log show.
    """

    exists: bool = False
    up_to_date: bool = False
    late_initialized: bool = False
    diff: str = ""


@runtime_checkable
class ExternalClient(Protocol[T]):
    """Manages the external resource of one object at a time.

    Calls must not block the event loop and must be idempotent: the deletion of a missing resource
    is not an error. A call fails by raising. A call that exceeds its time is cancelled.
    """

    async def observe(self, managed: Managed[T]) -> Observation:
        """Return the state of the external resource without changing the resource.

        May change `managed.status` and its conditions, which are stored. May also change
        `managed.spec` and annotations, which are stored instead of the status if the observation is
        `late_initialized`.
        """
        ...

    async def create(self, managed: Managed[T]) -> None:
        """Create the external resource, which does not exist.

        May change `managed.annotations` and `managed.external_name`, which are stored; other
        changes are dropped. An exception means that nothing was created. After a timeout or a lost
        connection the result is unknown, also if it is the cause of the exception.
        """
        ...

    async def update(self, managed: Managed[T]) -> None:
        """Update the external resource, which exists and is not up to date."""
        ...

    async def delete(self, managed: Managed[T]) -> None:
        """Delete the external resource; called again until `observe` reports that it is gone."""
        ...


@runtime_checkable
class ExternalConnecter(Protocol[T]):
    """Makes the client for an object, before each observation."""

    async def connect(self, managed: Managed[T]) -> ExternalClient[T]:
        """Return a client of the object's external system."""
        ...


@runtime_checkable
class ExternalDisconnecter(Protocol):
    """Releases what a connecter acquired, at the end of every reconciliation."""

    async def disconnect(self) -> None:
        """Close the connection."""
        ...


@runtime_checkable
class ExternalConnectDisconnecter(ExternalConnecter[T], ExternalDisconnecter, Protocol[T]):
    """A connecter that also disconnects."""


ExternalConnectorFn: TypeAlias = Callable[[Managed[T]], Awaitable[ExternalClient[T]]]
ExternalDisconnectorFn: TypeAlias = Callable[[], Awaitable[None]]


async def _observe_nothing(_managed: Managed[Any]) -> Observation:
    return Observation()


async def _do_nothing(_managed: Managed[Any]) -> None:
    """Do nothing."""


async def _disconnect_nothing() -> None:
    """Do nothing."""


async def observed(client: ExternalClient[T], managed: Managed[T]) -> Observation:
    """Call `observe`; raises `HandlerError` if it does not return an `Observation`."""
    observation: object = await awaitable(client.observe, managed)
    if not isinstance(observation, Observation):
        raise HandlerError(f"observe returned {shown(observation)}: return an Observation")
    return observation


class ExternalClientFns(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """An `ExternalClient` made of functions; an omitted function does nothing."""

    observe_fn: Callable[[Managed[T]], Awaitable[Observation]] = _observe_nothing
    create_fn: Callable[[Managed[T]], Awaitable[None]] = _do_nothing
    update_fn: Callable[[Managed[T]], Awaitable[None]] = _do_nothing
    delete_fn: Callable[[Managed[T]], Awaitable[None]] = _do_nothing

    async def observe(self, managed: Managed[T]) -> Observation:
        return await awaitable(self.observe_fn, managed)

    async def create(self, managed: Managed[T]) -> None:
        await awaitable(self.create_fn, managed)

    async def update(self, managed: Managed[T]) -> None:
        await awaitable(self.update_fn, managed)

    async def delete(self, managed: Managed[T]) -> None:
        await awaitable(self.delete_fn, managed)


class NopClient(ExternalClientFns[Any], frozen=True, kw_only=True):
    """A client of an empty external system, which does nothing."""


class ExternalConnectDisconnecterFns(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """An `ExternalConnectDisconnecter` made of functions."""

    connect_fn: ExternalConnectorFn[T]
    disconnect_fn: ExternalDisconnectorFn = _disconnect_nothing

    async def connect(self, managed: Managed[T]) -> ExternalClient[T]:
        return await self.connect_fn(managed)

    async def disconnect(self) -> None:
        await self.disconnect_fn()


class NopConnecter:
    """An `ExternalConnecter` that returns `NopClient`s."""

    async def connect(self, managed: Managed[Any]) -> NopClient:  # noqa: ARG002 - the protocol's argument
        """Return a `NopClient`."""
        return NopClient()


class NopDisconnecter(Generic[T]):
    """Adds a `disconnect` that does nothing to an `ExternalConnecter`."""

    def __init__(self, connecter: ExternalConnecter[T]) -> None:
        self._connecter = connecter

    async def connect(self, managed: Managed[T]) -> ExternalClient[T]:
        return await self._connecter.connect(managed)

    async def disconnect(self) -> None:
        """Do nothing."""


def connect_disconnecter(
    connecter: ExternalConnecter[T] | ExternalConnectorFn[T],
) -> ExternalConnectDisconnecter[T]:
    """Return an `ExternalConnectDisconnecter` for a connecter or a plain function."""
    if not isinstance(connecter, ExternalConnecter):
        return ExternalConnectDisconnecterFns(connect_fn=connecter)
    if isinstance(connecter, ExternalConnectDisconnecter):
        return connecter
    return NopDisconnecter(connecter)
