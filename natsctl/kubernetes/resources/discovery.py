"""Finds the resource of a kind: its path, its scope, and the verbs that the server supports."""

import asyncio
import difflib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError, StoreMissingError
from natsctl.kubernetes.http.api_errors import KindMissingError
from natsctl.kubernetes.http.transport import Transport
from natsctl.kubernetes.http.wire import Reply, Wire
from natsctl.model.manifests import KubeKind
from natsctl.model.write_guard import UNGUARDED, WriteGuard

T = TypeVar("T")


READS = ("GET", "HEAD")


class ApiResource(msgspec.Struct, frozen=True):
    """A kind as a server has it. `verbs` are what it can do, not what we may."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    verbs: frozenset[str]
    has_status: bool


class _Resource(msgspec.Struct, frozen=True):
    name: str
    kind: str
    namespaced: bool = False
    verbs: list[str] = []


class _Resources(msgspec.Struct, frozen=True):
    resources: list[_Resource] | None = None


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    group_version: str = ""


class _Group(msgspec.Struct, frozen=True):
    versions: list[_Version] | None = None


class _Looked(msgspec.Struct, frozen=True):
    """What a lookup found: the types by kind, or that there is no such group version."""

    at: float
    types: dict[str, ApiResource]
    absence: str = ""


class Discovery:
    """Finds kinds at the server of *transport*, and remembers them.

    Found kinds are believed for *ttl_s* seconds, a kind that is missing for *miss_ttl_s*: by
    default it is looked for each time, because its definition may come any moment. Whoever asks
    while a lookup of the same group version is on its way shares its answer.
    """

    def __init__(
        self, transport: Transport, *, ttl_s: float = 600.0, miss_ttl_s: float = 0.0
    ) -> None:
        self._transport = transport
        self._ttl_s = ttl_s
        self._miss_ttl_s = miss_ttl_s
        self._looked: dict[str, _Looked] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def find(self, api_version: str, kind: str) -> ApiResource:
        """Return the resource type of *kind* in *api_version*, such as `apps/v1`.

        Raises `StoreMissingError` for a kind or a group version that the server does not have,
        naming the nearest that it has, and what `Transport.call` raises.
        """
        looked = self._looked.get(api_version)
        if looked is None or not self._fresh(looked, kind):
            looked = await self._look_once(api_version, looked)
        found = looked.types.get(kind)
        if found is None:
            raise StoreMissingError(_missing(api_version, kind, looked))
        return found

    def forget(self, api_version: str) -> None:
        """Look the kinds of *api_version* up again before the next use.

        For a caller whose request to a kind's path met a `KindMissingError`: the kind may have
        been defined again with another plural, scope or status subresource.
        """
        self._looked.pop(api_version, None)

    def _fresh(self, looked: _Looked, kind: str) -> bool:
        """Whether what was found settles what and where *kind* is."""
        ttl_s = self._ttl_s if kind in looked.types else self._miss_ttl_s
        return asyncio.get_running_loop().time() - looked.at < ttl_s

    async def _look_once(self, api_version: str, before: _Looked | None) -> _Looked:
        """Look, unless somebody else has, or just does, since *before* was found."""
        async with self._locks.setdefault(api_version, asyncio.Lock()):
            looked = self._looked.get(api_version)
            if looked is None or looked is before:
                looked = self._looked[api_version] = await self._look(api_version)
        return looked

    async def _look(self, api_version: str) -> _Looked:
        at = asyncio.get_running_loop().time()
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            reply = await self._transport.call("GET", path)
        except StoreMissingError:
            return _Looked(at, {}, await self._absence(api_version))
        answer = _decoded(reply.body, _Resources, path)
        return _Looked(at, _types(api_version, answer.resources or []))

    async def _absence(self, api_version: str) -> str:
        """Return what the server has instead of a group version that it does not have."""
        group, _, version = api_version.rpartition("/")
        if not group:
            return f"the server has no {api_version}"
        path = f"/apis/{group}"
        try:
            reply = await self._transport.call("GET", path)
        except StoreMissingError:
            return f"the server has no API group {group}"
        versions = _decoded(reply.body, _Group, path).versions or []
        known = ", ".join(version.group_version for version in versions)
        return f"the server has no {version} of {group}, but {known}"


class KindWire:
    """Carries the requests of one kind; a `Wire`. A write asks *guard* before it is sent.

    If the server no longer serves a kind's path, discovery forgets the group version. The next
    request then finds a kind that was defined again with another plural, scope or status.
    """

    def __init__(
        self,
        wire: Wire,
        discovery: Discovery,
        kind: KubeKind[Any],
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        self._wire = wire
        self._discovery = discovery
        self._kind = kind
        self._guard = guard

    async def call(self, method: str, path: str, **options: Any) -> Reply:
        """See `Wire.call`."""
        call = partial(self._wire.call, method, path, **options)
        try:
            return await (call() if method in READS else self._guard.send(self._kind, call))
        except KindMissingError:
            self._discovery.forget(self._kind.api_version)
            raise

    @asynccontextmanager
    async def stream(self, path: str, **options: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """See `Wire.stream`."""
        try:
            async with self._wire.stream(path, **options) as lines:
                yield lines
        except KindMissingError:
            self._discovery.forget(self._kind.api_version)
            raise


def _types(api_version: str, resources: list[_Resource]) -> dict[str, ApiResource]:
    names = {resource.name for resource in resources}
    return {
        resource.kind: ApiResource(
            api_version=api_version,
            kind=resource.kind,
            plural=resource.name,
            namespaced=resource.namespaced,
            verbs=frozenset(resource.verbs),
            has_status=f"{resource.name}/status" in names,
        )
        for resource in reversed(resources)
        if "/" not in resource.name
    }


def _missing(api_version: str, kind: str, looked: _Looked) -> str:
    told = f"there is no kind {kind} in {api_version}"
    if looked.absence:
        return f"{told}: {looked.absence}"
    nearest = difflib.get_close_matches(kind.lower(), map(str.lower, looked.types), 1, 0.0)
    names = {name.lower(): name for name in looked.types}
    meant = f"; the nearest is {names[nearest[0]]}" if nearest else ""
    return f"{told}{meant}. A custom kind needs its CustomResourceDefinition"


def _decoded(body: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except DECODE_ERRORS as error:
        raise StoreError(f"GET {path} answers with something else: {error}") from error
