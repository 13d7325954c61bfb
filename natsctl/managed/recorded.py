"""Notes the external calls of a reconciliation, or replays them.

A plan observes the resource for real, and only records the other calls. A replay answers each call
of the client as it was recorded, and makes only calls that used `blocking`, whose results are
recorded. A write of the external system that was not recorded counts as successful.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from natsctl.core.planning.record import Effect, current_plan, place_of
from natsctl.core.sync import awaitable, current_sync, current_tape, outside
from natsctl.core.tape import EXTERNAL, StoreStep
from natsctl.managed.conditions import MESSAGE_MAX
from natsctl.managed.external import (
    ExternalClient,
    ExternalClientFns,
    ExternalConnectDisconnecter,
    Observation,
    observed,
)
from natsctl.managed.objects import Managed
from natsctl.model.masking import masked_text
from natsctl.telemetry.hiding import hidden

T = TypeVar("T")


class ExternalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an external call: the observation, and the object as the client left it."""

    observation: Observation = Observation()
    annotations: dict[str, str]
    spec: dict[str, Any]
    status: dict[str, Any]
    conditions: list[str]

    @classmethod
    def of(cls, managed: Managed[Any], observation: Observation) -> "ExternalAnswer":
        """Return the answer after a call."""
        return cls(
            observation=observation,
            annotations=managed.annotations,
            spec=managed.spec,
            status=managed.status,
            conditions=sorted(managed.set_types),
        )

    def apply(self, managed: Managed[Any]) -> None:
        """Leave the object as the client did."""
        managed.annotations = dict(self.annotations)
        managed.spec, managed.status = dict(self.spec), dict(self.status)
        managed.set_types = set(self.conditions)


class ExternalConnection(Generic[T]):
    """The client of one reconciliation, whose calls are noted; an `ExternalClient`."""

    def __init__(self, connecter: ExternalConnectDisconnecter[T]) -> None:
        self._connecter = connecter
        self._client: ExternalClient[T] | None = None
        self._assumed = ""  # the last write that a replay took as successful
        self._diff = ""  # what the last observation found to differ

    async def connect(self, managed: Managed[T]) -> None:
        """Make the client."""

        async def connect() -> None:
            await self._connected(managed)

        await outside(f"{EXTERNAL} connect", connect)

    async def disconnect(self) -> None:
        """Release the client, if there is one."""
        if self._client is not None or not _replays():
            await awaitable(self._connecter.disconnect)

    async def observe(self, managed: Managed[T]) -> Observation:

        async def observe() -> Observation:
            observation = await observed(await self._connected(managed), managed)
            managed.check()
            return observation

        if self._assumed and not _has_recorded("observe"):
            return Observation(exists=self._assumed != "delete", up_to_date=True)
        observation = await self._noted("observe", managed, observe)
        text = hidden(masked_text(str(observation.diff), [managed.stored.value]))
        self._diff = text[:MESSAGE_MAX]
        return msgspec.structs.replace(observation, diff=self._diff)

    async def create(self, managed: Managed[T]) -> None:
        await self._write("create", managed)

    async def update(self, managed: Managed[T]) -> None:
        await self._write("update", managed)

    async def delete(self, managed: Managed[T]) -> None:
        await self._write("delete", managed)

    async def _write(self, verb: Effect, managed: Managed[T]) -> None:
        """Make the call, unless a replay takes it as successful, and count it."""

        async def write() -> Observation:
            client = await self._connected(managed)
            method = {"create": client.create, "update": client.update, "delete": client.delete}
            await awaitable(method[verb], managed)
            if verb != "create":  # `Steps` checks what `create` left, because it must not repeat it
                managed.check()
            return Observation()

        tape, sync = current_tape(), current_sync.get()
        if tape is not None and tape.replays:
            tape.append(StoreStep(EXTERNAL, verb, managed.key))
        if _has_recorded(verb):
            await self._noted(verb, managed, write)
        else:
            self._assumed = verb
        if sync is not None:
            sync.created += verb == "create"
            sync.updated += verb == "update"
            sync.deleted += verb == "delete"

    async def _noted(
        self, verb: str, managed: Managed[T], call: Callable[[], Awaitable[Observation]]
    ) -> Observation:
        if current_tape() is None:
            return await call()

        async def answered() -> ExternalAnswer:
            return ExternalAnswer.of(managed, await call())

        answer = await outside(f"{EXTERNAL} {verb}", answered)
        if _replays():
            answer.apply(managed)
        return answer.observation

    async def _connected(self, managed: Managed[T]) -> ExternalClient[T]:
        """Return the client; a replay makes it only for a call that it makes."""
        if self._client is None:
            client = await awaitable(self._connecter.connect, managed)
            self._client = self._planned(client)
        return self._client

    def _planned(self, client: ExternalClient[T]) -> ExternalClient[T]:
        """Return the client, or in a plan one that only observes."""
        plan = current_plan.get()
        if plan is None:
            return client

        def recorded(verb: Effect) -> Callable[[Managed[T]], Awaitable[None]]:
            async def record(managed: Managed[T]) -> None:
                place, differs = place_of(managed.kind), self._diff if verb == "update" else ""
                plan.called(place, managed.kind, managed.key, verb, differs=differs)

            return record

        return ExternalClientFns(
            observe_fn=client.observe,
            create_fn=recorded("create"),
            update_fn=recorded("update"),
            delete_fn=recorded("delete"),
        )


def _replays() -> bool:
    tape = current_tape()
    return tape is not None and tape.replays


def _has_recorded(verb: str) -> bool:
    """Return whether a further call is recorded; true outside of a replay."""
    tape = current_tape()
    return tape is None or tape.has(f"{EXTERNAL} {verb}")
