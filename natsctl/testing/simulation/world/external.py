"""Stands for an external system, such as a cloud, with the faults of a simulation."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from natsctl.errors import StoreTimeoutError
from natsctl.managed.external import Observation
from natsctl.managed.objects import Managed
from natsctl.testing.simulation.world.faults import EXTERNAL_READ_FAULTS, EXTERNAL_WRITE_FAULTS
from natsctl.testing.simulation.world.network import ExternalState, Fields
from natsctl.testing.simulation.world.process import current_life

T = TypeVar("T")


class ExternalError(Exception):
    """Raised by a `SimulatedExternal` that rejects a call: the name exists, or doesn't."""


class SimulatedExternal:
    """An external system in memory, whose resources have a name and fields.

    In a simulation each run has its own resources. Answers are lost, calls are slow or time out,
    and a read may return an older state. The properties of the simulation include the resources.
    Outside of a simulation the calls don't fail.

    It is an `ExternalConnecter`: its client keeps the spec of each managed object under the
    external name of the object, or under its key.

    Args:
        name: the name in findings.
    """

    def __init__(self, name: str = "external") -> None:
        self.name = name
        self._own = ExternalState()

    @property
    def resources(self) -> Mapping[str, Fields]:
        """The fields of all resources by name."""
        return self._state.resources

    @property
    def creations(self) -> int:
        """The number of resources that were created."""
        return self._state.creations

    async def create(self, fields: Mapping[str, Any], *, name: str = "") -> str:
        """Create a resource and return its name; without a name, the system chooses one.

        Raises `ExternalError` if the name exists, and `TimeoutError` if there is no answer.
        """

        async def create() -> str:
            state = self._state
            if name in state.resources:
                raise ExternalError(f"{name} exists")
            state.creations += 1
            created = name or f"{self.name}-{state.creations}"
            if not name:
                state.unnamed.add(created)
            state.change(created, dict(fields))
            return created

        return await self._write("create", name, create)

    async def read(self, name: str) -> Fields | None:
        """Return the fields of a resource, None if it doesn't exist."""
        return (await self.list()).get(name)

    async def list(self) -> dict[str, Fields]:
        """Return the fields of all resources by name."""
        life = current_life.get()
        if life is None:
            return self._state.seen(0.0)

        async def read() -> dict[str, Fields]:
            return self._state.seen(life.network.late_s(self.name))

        return await self._call("read", "", read, EXTERNAL_READ_FAULTS)

    async def update(self, name: str, fields: Mapping[str, Any]) -> None:
        """Replace the fields of a resource; raises `ExternalError` if it doesn't exist."""

        async def update() -> str:
            if name not in self._state.resources:
                raise ExternalError(f"{name} does not exist")
            self._state.change(name, dict(fields))
            return name

        await self._write("update", name, update)

    async def delete(self, name: str) -> None:
        """Delete a resource, if it exists."""

        async def delete() -> str:
            if name in self._state.resources:
                self._state.change(name, None)
            return name

        await self._write("delete", name, delete)

    async def connect(self, managed: Managed[Any]) -> "ExternalSpecs":  # noqa: ARG002 - the protocol's argument
        """Return a client for managed objects; see `ExternalConnecter.connect`."""
        return ExternalSpecs(self)

    async def _write(self, operation: str, name: str, action: Callable[[], Awaitable[str]]) -> str:
        life = current_life.get()
        if life is None:
            return await action()

        async def write() -> str:
            before = self._state.resources.get(name)
            written = await action()
            if operation == "create" or self._state.resources.get(name) != before:
                value = msgspec.json.encode(self._state.resources.get(written))
                life.network.wrote(life.name, operation, self.name, written, value)
            return written

        return await self._call(operation, name, write, EXTERNAL_WRITE_FAULTS)

    async def _call(
        self, operation: str, name: str, action: Callable[[], Awaitable[T]], types: Any
    ) -> T:
        life = current_life.get()
        if life is None:
            return await action()
        try:
            return await life.network.call(life, operation, self.name, name, action, types=types)
        except StoreTimeoutError as error:
            raise TimeoutError(str(error)) from None

    @property
    def _state(self) -> ExternalState:
        life = current_life.get()
        if life is None:
            return self._own
        return life.network.externals.setdefault(self.name, ExternalState())


class ExternalSpecs:
    """Keeps the specs of managed objects in a `SimulatedExternal`; an `ExternalClient`."""

    def __init__(self, external: SimulatedExternal) -> None:
        self._external = external

    async def observe(self, managed: Managed[Any]) -> Observation:
        fields = await self._external.read(_name(managed))
        return Observation(exists=fields is not None, up_to_date=fields == managed.spec)

    async def create(self, managed: Managed[Any]) -> None:
        await self._external.create(managed.spec, name=_name(managed))

    async def update(self, managed: Managed[Any]) -> None:
        await self._external.update(_name(managed), managed.spec)

    async def delete(self, managed: Managed[Any]) -> None:
        await self._external.delete(_name(managed))


def _name(managed: Managed[Any]) -> str:
    return managed.external_name or managed.key
