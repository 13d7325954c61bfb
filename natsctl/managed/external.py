"""How an outside system is spoken to: clients of it, and how one is had."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from natsctl.core.sync.calls import awaitable, shown
from natsctl.errors import HandlerError
from natsctl.managed.objects import Managed

T = TypeVar("T")


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed of an external resource (seed: `ExternalObservation`).

    Args:
        exists: there is one for this object: typically, one of its external name.
        up_to_date: updating it would change nothing.
        late_initialized: the observation set fields of `managed.spec` that were unset, and they
            are to be stored.
        diff: how it differs, for the log at debug level.
    """

    exists: bool = False
    up_to_date: bool = False
    late_initialized: bool = False
    diff: str = ""


@runtime_checkable
class ExternalClient(Protocol[T]):
    """Speaks to an outside system about one object at a time.

    No call may block, and each is idempotent: deleting what is gone, or on its way, is no error.
    Failing is raising. A call that takes too long is cut short with `asyncio.CancelledError`.
    """

    async def observe(self, managed: Managed[T]) -> Observation:
        """Say what there is, and change nothing of it.

        May change `managed.status` and its conditions, which is stored; and `managed.spec` and
        annotations, which is stored where the observation says `late_initialized`, in place of
        the status.
        """
        ...

    async def create(self, managed: Managed[T]) -> None:
        """Create it; called where it does not exist.

        May change `managed.annotations` and `managed.external_name`, which is stored; every other
        change is dropped. What it raises says that nothing was created, except for
        `TimeoutError` and `StoreTimeoutError`: of those nobody knows.
        """
        ...

    async def update(self, managed: Managed[T]) -> None:
        """Make it say what the object says; called where it exists and is not up to date."""
        ...

    async def delete(self, managed: Managed[T]) -> None:
        """Delete it, or begin to; called until it is not observed any more."""
        ...


@runtime_checkable
class ExternalConnecter(Protocol[T]):
    """Gives a client for an object; called before it is observed."""

    async def connect(self, managed: Managed[T]) -> ExternalClient[T]:
        """Return a client that speaks to the system that the object means."""
        ...


@runtime_checkable
class ExternalDisconnecter(Protocol):
    """Lets go of what a connecter had; called at the end of every reconciliation."""

    async def disconnect(self) -> None:
        """Let go of the connection."""
        ...


@runtime_checkable
class ExternalConnectDisconnecter(ExternalConnecter[T], ExternalDisconnecter, Protocol[T]):
    """Both."""


ExternalConnectorFn: TypeAlias = Callable[[Managed[T]], Awaitable[ExternalClient[T]]]
ExternalDisconnectorFn: TypeAlias = Callable[[], Awaitable[None]]


async def _observe_nothing(_managed: Managed[Any]) -> Observation:
    return Observation()


async def _do_nothing(_managed: Managed[Any]) -> None:
    """Nothing is done."""


async def _let_go_of_nothing() -> None:
    """Nothing is held."""


async def observed(client: ExternalClient[T], managed: Managed[T]) -> Observation:
    """Return what the client observes; raises `HandlerError` if that is no observation."""
    observation: object = await awaitable(client.observe, managed)
    if not isinstance(observation, Observation):
        raise HandlerError(f"observe returned {shown(observation)}: return an Observation")
    return observation


class ExternalClientFns(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Functions that make an `ExternalClient`; what is left out does nothing."""

    observe_fn: Callable[[Managed[T]], Awaitable[Observation]] = _observe_nothing
    create_fn: Callable[[Managed[T]], Awaitable[None]] = _do_nothing
    update_fn: Callable[[Managed[T]], Awaitable[None]] = _do_nothing
    delete_fn: Callable[[Managed[T]], Awaitable[None]] = _do_nothing

    async def observe(self, managed: Managed[T]) -> Observation:
        """See `ExternalClient.observe`."""
        return await awaitable(self.observe_fn, managed)

    async def create(self, managed: Managed[T]) -> None:
        """See `ExternalClient.create`."""
        await awaitable(self.create_fn, managed)

    async def update(self, managed: Managed[T]) -> None:
        """See `ExternalClient.update`."""
        await awaitable(self.update_fn, managed)

    async def delete(self, managed: Managed[T]) -> None:
        """See `ExternalClient.delete`."""
        await awaitable(self.delete_fn, managed)


class NopClient(ExternalClientFns[Any], frozen=True, kw_only=True):
    """A client of a system in which there is nothing, and nothing happens."""


class ExternalConnectDisconnecterFns(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Functions that make an `ExternalConnectDisconnecter`."""

    connect_fn: ExternalConnectorFn[T]
    disconnect_fn: ExternalDisconnectorFn = _let_go_of_nothing

    async def connect(self, managed: Managed[T]) -> ExternalClient[T]:
        """See `ExternalConnecter.connect`."""
        return await self.connect_fn(managed)

    async def disconnect(self) -> None:
        """See `ExternalDisconnecter.disconnect`."""
        await self.disconnect_fn()


class NopConnecter:
    """Connects to nothing."""

    async def connect(self, managed: Managed[Any]) -> NopClient:  # noqa: ARG002 - any will do
        """Return a `NopClient`."""
        return NopClient()


class NopDisconnecter(Generic[T]):
    """An `ExternalConnecter` with nothing to let go of."""

    def __init__(self, connecter: ExternalConnecter[T]) -> None:
        self._connecter = connecter

    async def connect(self, managed: Managed[T]) -> ExternalClient[T]:
        """Connect as the connecter does."""
        return await self._connecter.connect(managed)

    async def disconnect(self) -> None:
        """Do nothing."""


def connect_disconnecter(
    connecter: ExternalConnecter[T] | ExternalConnectorFn[T],
) -> ExternalConnectDisconnecter[T]:
    """Return what connects and disconnects, made of a connecter or of a plain function."""
    if not isinstance(connecter, ExternalConnecter):
        return ExternalConnectDisconnecterFns(connect_fn=connecter)
    if isinstance(connecter, ExternalConnectDisconnecter):
        return connecter
    return NopDisconnecter(connecter)
