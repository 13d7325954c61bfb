"""Stands for an external system, such as a cloud, with the faults of a simulation."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from natsctl.errors import StoreTimeoutError
from natsctl.managed.external import Observation
from natsctl.managed.objects import Managed
from natsctl.testing.simulation.faults import EXTERNAL_READ_FAULTS, EXTERNAL_WRITE_FAULTS
from natsctl.testing.simulation.process import current_life

T = TypeVar("T")

Fields = dict[str, Any]

VERSIONS_MAX = 50  # former states that a late read may return


class ExternalState:
    """The resources of one external system, and their former states."""

    def __init__(self) -> None:
        self.resources: dict[str, Fields] = {}
        self.unnamed: set[str] = set()  # names that the system chose
        self.creations = 0
        self._former: list[tuple[float, dict[str, Fields]]] = []  # each until this time

    def change(self, name: str, fields: Mapping[str, Any] | None) -> None:
        """Set the fields of a resource; None removes it."""
        now = asyncio.get_running_loop().time()
        self._former.append((now, dict(self.resources)))  # no resource changes in place
        del self._former[:-VERSIONS_MAX]
        if fields is None:
            del self.resources[name]
        else:
            self.resources[name] = copy.deepcopy(dict(fields))

    def seen(self, late_s: float) -> dict[str, Fields]:
        """Return the resources as they were *late_s* seconds ago."""
        moment = asyncio.get_running_loop().time() - late_s
        former = (resources for until, resources in self._former if until > moment)
        return copy.deepcopy(next(former, self.resources))


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
            state.change(created, fields)
            return created

        return await self._call("create", name, create)

    async def read(self, name: str) -> Fields | None:
        """Return the fields of a resource, None if it doesn't exist."""
        return (await self.list()).get(name)

    async def list(self) -> dict[str, Fields]:
        """Return the fields of all resources by name."""

        async def read() -> dict[str, Fields]:
            life = current_life.get()
            return self._state.seen(0.0 if life is None else life.network.late_s(self.name))

        return await self._call("read", "", read)

    async def update(self, name: str, fields: Mapping[str, Any]) -> None:
        """Replace the fields of a resource; raises `ExternalError` if it doesn't exist."""

        async def update() -> str:
            if name not in self._state.resources:
                raise ExternalError(f"{name} does not exist")
            self._state.change(name, fields)
            return name

        await self._call("update", name, update)

    async def delete(self, name: str) -> None:
        """Delete a resource, if it exists."""

        async def delete() -> str:
            if name in self._state.resources:
                self._state.change(name, None)
            return name

        await self._call("delete", name, delete)

    async def connect(self, managed: Managed[Any]) -> "ExternalSpecs":  # noqa: ARG002 - the protocol's argument
        """Return a client for managed objects; see `ExternalConnecter.connect`."""
        return ExternalSpecs(self)

    async def _call(self, operation: str, name: str, action: Callable[[], Awaitable[T]]) -> T:
        life = current_life.get()
        if life is None:
            return await action()
        network, state = life.network, self._state

        async def act() -> T:
            before = state.resources.get(name)
            result = await action()
            written = str(result) if operation == "create" else name
            after = state.resources.get(written)
            if operation != "read" and after != before:
                network.wrote(life.name, operation, self.name, written, msgspec.json.encode(after))
            return result

        types = EXTERNAL_READ_FAULTS if operation == "read" else EXTERNAL_WRITE_FAULTS
        try:
            return await network.call(life, operation, self.name, name, act, types=types)
        except StoreTimeoutError as error:
            raise TimeoutError(str(error)) from None

    @property
    def _state(self) -> ExternalState:
        life = current_life.get()
        if life is None:
            return self._own
        state: ExternalState = life.network.externals.setdefault(self.name, ExternalState())
        return state


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
