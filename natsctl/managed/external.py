"""Clients of external systems, and the connecters that make them."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from natsctl.core.environment import environment
from natsctl.core.sync import awaitable, current_sync, current_tape, outside
from natsctl.core.tape import EXTERNAL, StoreStep, place_of
from natsctl.errors import HandlerError
from natsctl.managed.objects import MESSAGE_MAX, Managed
from natsctl.model.masking import masked_text
from natsctl.telemetry.hiding import hidden, shown

T = TypeVar("T")

Verb: TypeAlias = Literal["observe", "create", "update", "delete"]


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

    Don't block the event loop, and make calls idempotent: deleting what's gone isn't an error.
    To say that something went wrong, raise. A call that takes too long is cancelled.
    """

    async def observe(self, managed: Managed[T]) -> Observation:
        """Return the state of the external resource without changing the resource.

        May change `managed.status` and its conditions, which are stored. May also change
        `managed.spec` and annotations, which are stored instead of the status if the observation is
        `late_initialized`.
        """
        ...

    async def create(self, managed: Managed[T]) -> None:
        """Create the external resource, which doesn't exist.

        May change `managed.annotations` and `managed.external_name`, which are stored; other
        changes are dropped. An exception means that nothing was created. After a timeout or a lost
        connection the result is unknown, also if it is the cause of the exception.
        """
        ...

    async def update(self, managed: Managed[T]) -> None:
        """Update the external resource, which exists and isn't up to date."""
        ...

    async def delete(self, managed: Managed[T]) -> None:
        """Delete the external resource; called again until `observe` reports that it is gone."""
        ...


@runtime_checkable
class ExternalConnecter(Protocol[T]):
    """Makes the client for an object, before each observation."""

    async def connect(self, managed: Managed[T]) -> ExternalClient[T]: ...


@runtime_checkable
class ExternalDisconnecter(Protocol):
    """Releases what a connecter acquired, at the end of every reconciliation."""

    async def disconnect(self) -> None: ...


@runtime_checkable
class ExternalConnectDisconnecter(ExternalConnecter[T], ExternalDisconnecter, Protocol[T]):
    """A connecter that also disconnects."""


ExternalConnectorFn: TypeAlias = Callable[[Managed[T]], Awaitable[ExternalClient[T]]]
ExternalDisconnectorFn: TypeAlias = Callable[[], Awaitable[None]]


async def _observe_nothing(_managed: Managed[Any]) -> Observation:
    return Observation()


async def _do_nothing(*_managed: Managed[Any]) -> None:
    return


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
    disconnect_fn: ExternalDisconnectorFn = _do_nothing

    async def connect(self, managed: Managed[T]) -> ExternalClient[T]:
        return await self.connect_fn(managed)

    async def disconnect(self) -> None:
        await self.disconnect_fn()


class NopConnecter:
    """An `ExternalConnecter` that returns `NopClient`s."""

    async def connect(self, managed: Managed[Any]) -> NopClient:  # noqa: ARG002 - the protocol's argument
        return NopClient()


class NopDisconnecter(Generic[T]):
    """Adds a `disconnect` that does nothing to an `ExternalConnecter`."""

    def __init__(self, connecter: ExternalConnecter[T]) -> None:
        self._connecter = connecter

    async def connect(self, managed: Managed[T]) -> ExternalClient[T]:
        return await self._connecter.connect(managed)

    async def disconnect(self) -> None:
        pass


def connect_disconnecter(
    connecter: ExternalConnecter[T] | ExternalConnectorFn[T],
) -> ExternalConnectDisconnecter[T]:
    """Return an `ExternalConnectDisconnecter` for a connecter or a plain function."""
    if not isinstance(connecter, ExternalConnecter):
        return ExternalConnectDisconnecterFns(connect_fn=connecter)
    if isinstance(connecter, ExternalConnectDisconnecter):
        return connecter
    return NopDisconnecter(connecter)


# ---- the calls of one reconciliation


class ExternalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an external call: the observation, and the object as the client left it."""

    observation: Observation = Observation()
    annotations: dict[str, str]
    spec: dict[str, Any]
    status: dict[str, Any]
    conditions: list[str]


class ExternalConnection(Generic[T]):
    """Makes the calls of one reconciliation.

    A plan observes the resource for real, and only records the other calls. A recording notes each
    call and what the client left on the object. A replay answers as recorded, and makes only calls
    that used `blocking`; a write that was not recorded counts as successful.
    """

    def __init__(self, connecter: ExternalConnectDisconnecter[T], managed: Managed[T]) -> None:
        self._connecter, self._managed = connecter, managed
        self._client: ExternalClient[T] | None = None
        self._assumed = ""  # the last write that a replay took as successful
        self._diff = ""  # what the last observation found to differ

    async def connect(self) -> None:
        async def connect() -> None:
            await self._connected()

        await outside(f"{EXTERNAL} connect", connect)

    async def disconnect(self) -> None:
        """Release the client, if there is one."""
        tape = current_tape()
        if self._client is not None or tape is None or not tape.replays:
            await awaitable(self._connecter.disconnect)

    async def observe(self) -> Observation:
        """Observe; `diff` is masked and cut to a size that a status can show."""
        tape = current_tape()
        if self._assumed and tape is not None and not tape.has(f"{EXTERNAL} observe"):
            return Observation(exists=self._assumed != "delete", up_to_date=True)
        observation = await self._noted("observe")
        text = hidden(masked_text(str(observation.diff), [self._managed.stored.value]))
        self._diff = text[:MESSAGE_MAX]
        return msgspec.structs.replace(observation, diff=self._diff)

    async def write(self, verb: Literal["create", "update", "delete"]) -> None:
        """Create, update or delete the resource, and count it."""
        tape, sync = current_tape(), current_sync.get()
        if tape is not None and tape.replays:
            tape.append(StoreStep(EXTERNAL, verb, self._managed.key))
        if tape is None or tape.has(f"{EXTERNAL} {verb}"):
            await self._noted(verb)
        else:
            self._assumed = verb
        if sync is not None:
            sync.created += verb == "create"
            sync.updated += verb == "update"
            sync.deleted += verb == "delete"

    async def _noted(self, verb: Verb) -> Observation:
        tape, managed = current_tape(), self._managed
        if tape is None:
            return await self._call(verb)

        async def answered() -> ExternalAnswer:
            return ExternalAnswer(
                observation=await self._call(verb),
                annotations=managed.annotations,
                spec=managed.spec,
                status=managed.status,
                conditions=sorted(managed.set_types),
            )

        answer = await tape.outside(f"{EXTERNAL} {verb}", answered, kind=ExternalAnswer)
        if tape.replays:
            managed.annotations = dict(answer.annotations)
            managed.spec, managed.status = dict(answer.spec), dict(answer.status)
            managed.set_types = set(answer.conditions)
        return answer.observation

    async def _call(self, verb: Verb) -> Observation:
        managed, client, plan = self._managed, await self._connected(), environment().plan
        if verb == "observe":
            observation: object = await awaitable(client.observe, managed)
            if not isinstance(observation, Observation):
                raise HandlerError(f"observe returned {shown(observation)}: return an Observation")
            managed.check()
            return observation
        if plan is not None:
            place, differs = place_of(managed.kind), self._diff if verb == "update" else ""
            plan.called(place, managed.kind, managed.key, verb, differs=differs)
            return Observation()
        method = {"create": client.create, "update": client.update, "delete": client.delete}
        await awaitable(method[verb], managed)
        if verb != "create":  # what `create` left is checked later, because it must not fail here
            managed.check()
        return Observation()

    async def _connected(self) -> ExternalClient[T]:
        """Return the client; a replay makes it only for a call that it makes."""
        if self._client is None:
            self._client = await awaitable(self._connecter.connect, self._managed)
        return self._client
