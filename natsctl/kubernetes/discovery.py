"""Asks the server which kinds it has, and builds the URL paths of a kind's objects."""

import difflib
from functools import lru_cache, partial
from urllib.parse import quote

import msgspec

from natsctl.errors import DECODE_ERRORS, InvalidKeyError, StoreError, StoreMissingError
from natsctl.kubernetes.api_errors import UnavailableError
from natsctl.kubernetes.transport import Reply, Transport
from natsctl.model.kept import KeptAnswers
from natsctl.model.manifests import split

_quoted = lru_cache(maxsize=1024)(partial(quote, safe=""))


class ApiResource(msgspec.Struct, frozen=True):
    """A kind as the server serves it. Its `verbs` are supported; you may lack the permission."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    verbs: frozenset[str]
    has_status: bool

    def all(self, namespace: str = "") -> str:
        root = "apis" if "/" in self.api_version else "api"
        place = f"/namespaces/{_quoted(namespace)}" if namespace else ""
        return f"/{root}/{self.api_version}{place}/{self.plural}"

    def one(self, key: str, subresource: str = "") -> str:
        namespace, name = self.parts(key)
        path = f"{self.all(namespace)}/{_quoted(name)}"
        return f"{path}/{subresource}" if subresource else path

    def parts(self, key: str) -> tuple[str, str]:
        """Return the namespace and the name of a key.

        Raises `InvalidKeyError` if a namespaced kind's key has no namespace, or a cluster-scoped
        kind's key has one.
        """
        namespace, name = split(key)
        if bool(namespace) != self.namespaced:
            form = "namespace/name" if self.namespaced else "name, without a namespace"
            raise InvalidKeyError(f"invalid key {key!r}: a key of {self.plural} is {form}")
        return namespace, name


class _Resource(msgspec.Struct, frozen=True):
    name: str
    kind: str
    namespaced: bool = False
    verbs: list[str] = []


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    group_version: str = ""


class _Served(msgspec.Struct, frozen=True):
    resources: list[_Resource] | None = None
    versions: list[_Version] | None = None


class _Lookup(msgspec.Struct, frozen=True):
    resources: dict[str, ApiResource]
    missing: str = ""


TTL_S = 600.0  # how long a found kind is cached


class Discovery:
    """Finds kinds at the server and caches them for `TTL_S`.

    A missing kind is looked up every time, because somebody may define it at any moment. Concurrent
    lookups of the same group version share one request.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lookups = KeptAnswers(self._look_up)

    async def find(self, api_version: str, kind: str, *, ttl_s: float = TTL_S) -> ApiResource:
        """Return the resource of *kind* in *api_version*, such as `apps/v1`.

        Raises the errors of `Transport.call`, and `StoreMissingError` if the server doesn't have
        the kind or the group version; the error names the most similar one.
        """
        lookup = await self._lookups.get(
            api_version, lambda it: ttl_s if kind in it.resources else 0.0
        )
        if kind not in lookup.resources:
            raise StoreMissingError(_missing_text(api_version, kind, lookup))
        return lookup.resources[kind]

    async def find_optional(self, api_version: str, kind: str) -> ApiResource:
        """Return the resource as `find` does; an API group without a server has no kinds.

        A cluster may register an API group, such as `metrics.k8s.io`, whose own server is gone.
        """
        try:
            return await self.find(api_version, kind)
        except UnavailableError as error:
            await self._transport.call("GET", "/version")  # the cluster itself answers
            raise StoreMissingError(f"the server of {api_version} is gone: {error}") from error

    def forget(self, api_version: str) -> None:
        """Look the kinds of *api_version* up again at the next use.

        Call this after a `KindMissingError`: the kind may have been defined again with another
        plural, scope or status subresource.
        """
        self._lookups.forget(api_version)

    async def _look_up(self, api_version: str) -> _Lookup:
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            reply = await self._transport.call("GET", path)
        except StoreMissingError:
            return _Lookup({}, await self._missing_version(api_version))
        served = _decoded(reply, path).resources or []
        names = {resource.name for resource in served}
        resources = {
            resource.kind: ApiResource(
                api_version=api_version,
                kind=resource.kind,
                plural=resource.name,
                namespaced=resource.namespaced,
                verbs=frozenset(resource.verbs),
                has_status=f"{resource.name}/status" in names,
            )
            for resource in reversed(served)
            if "/" not in resource.name
        }
        return _Lookup(resources)

    async def _missing_version(self, api_version: str) -> str:
        group, _, version = api_version.rpartition("/")
        if not group:
            return f"the server has no {api_version}"
        path = f"/apis/{group}"
        try:
            reply = await self._transport.call("GET", path)
        except StoreMissingError:
            return f"the server has no API group {group}"
        versions = _decoded(reply, path).versions or []
        served = ", ".join(version.group_version for version in versions)
        return f"the server has no {version} of {group}, but {served}"


def _missing_text(api_version: str, kind: str, lookup: _Lookup) -> str:
    text = f"there is no kind {kind} in {api_version}"
    if lookup.missing:
        return f"{text}: {lookup.missing}"
    names = {name.lower(): name for name in lookup.resources}
    similar = difflib.get_close_matches(kind.lower(), names, 1, 0.0)
    hint = f"; the most similar kind is {names[similar[0]]}" if similar else ""
    return f"{text}{hint}. A custom kind needs its CustomResourceDefinition"


def _decoded(reply: Reply, path: str) -> _Served:
    try:
        return msgspec.json.decode(reply.body, type=_Served)
    except DECODE_ERRORS as error:
        raise StoreError(f"GET {path} returned an invalid response: {error}") from error
