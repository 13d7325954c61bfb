"""Checks a Kubernetes cluster: connection, version, clock, kinds and permissions."""

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from natsctl.core.task_group import together
from natsctl.daemon.doctor.finding import Bounds, CheckFinding, failed, ok, skew, warning
from natsctl.daemon.rbac import Names, Need, Role, roles
from natsctl.errors import (
    DECODE_ERRORS,
    ConnectError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    UsageError,
)
from natsctl.kubernetes.api_errors import RequestInfo, UnavailableError
from natsctl.kubernetes.names import ResourceName
from natsctl.kubernetes.options import KubeOptions
from natsctl.model import documents
from natsctl.model.manifests import KubeKind

if TYPE_CHECKING:
    from natsctl.kubernetes.cluster import Kube
    from natsctl.kubernetes.transport import Transport

CLUSTER, PERMISSIONS, CLOCK = "kubernetes", "kubernetes permissions", "kubernetes clock"
IDENTITY = "kubernetes identity"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
OLDEST = (1, 20)
ADVICE = "check that the server runs, or select another one: --kubeconfig, --kube-context"


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    major: str = ""
    minor: str = ""
    git_version: str = ""


class _Status(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


class _Access(NamedTuple):
    """A verb on a resource that a controller needs."""

    namespace: str | None
    group: str
    plural: str
    name: str
    verb: str


async def check_kube(
    options: KubeOptions | None, needed: Sequence[Need], bounds: Bounds
) -> AsyncIterator[CheckFinding]:
    """Yield the findings about a cluster, without changing anything in it.

    There are no findings if the controllers need no cluster. *options* is None if a connection is
    forbidden.
    """
    if not needed:
        return
    kinds = ", ".join(dict.fromkeys(need.kind.name for need in needed))
    if options is None:
        found = f"{kinds} is kept there, and --no-kube forbids a connection"
        yield failed(CLUSTER, found, "remove --no-kube")
        return
    from natsctl.kubernetes.cluster import connect_kube  # noqa: PLC0415 - the import takes a third of a second

    try:
        async with connect_kube(options) as kube:
            async for finding in _server(kube.transport, bounds):
                yield finding
            yield await _identity(kube)
            async for finding in _kinds(kube, needed):
                yield finding
    except (ConnectError, StoreError, UsageError) as error:
        yield failed(CLUSTER, str(error), ADVICE)


async def _identity(kube: "Kube") -> CheckFinding:
    """Return by which id daemons tell this cluster from others, or why they can't."""
    try:
        return ok(IDENTITY, await kube.identity())
    except (PermissionDeniedError, NotFoundError) as error:
        found = f"daemons of two clusters would not notice each other: {error}"
        return warning(IDENTITY, found, "grant what natsctl rbac prints about kube-system")


async def _server(transport: "Transport", bounds: Bounds) -> AsyncIterator[CheckFinding]:
    before = datetime.now(UTC)
    reply = await transport.call("GET", "/version")
    after = datetime.now(UTC)
    try:
        version = msgspec.json.decode(reply.body, type=_Version)
    except DECODE_ERRORS as error:
        raise ConnectError(
            f"{transport.server} does not answer as a kube-apiserver does"
        ) from error
    found = f"{transport.server}, version {version.git_version}"
    numbers = (version.major, version.minor.rstrip("+"))
    if all(number.isdecimal() for number in numbers) and tuple(map(int, numbers)) < OLDEST:
        yield warning(CLUSTER, found, "its server-side apply is not reliable: update the cluster")
    else:
        yield ok(CLUSTER, found)
    server_time = _time(reply.date)
    if server_time is not None:
        yield skew(CLOCK, before, server_time, after, bounds.skew_s)


def _time(date: str) -> datetime | None:
    """Return the time of an HTTP `Date` header; None if it isn't a time in UTC."""
    try:
        parsed = parsedate_to_datetime(date)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None


async def _kinds(kube: "Kube", needed: Sequence[Need]) -> AsyncIterator[CheckFinding]:
    names: Names = {}
    for need in needed:
        kind = need.kind
        if (kind.api_version, kind.kind) in names:
            continue
        check = f"kind {kind.name}"
        try:
            resource = await kube.resource(kind.api_version, kind.kind)
        except StoreError as error:
            yield _not_served(kind, error)
        else:
            group = kind.api_version.rpartition("/")[0]
            names[kind.api_version, kind.kind] = ResourceName(
                group, resource.plural, resource.namespaced
            )
            yield ok(check, f"{resource.plural} of {kind.api_version}")
    existing = [need for need in needed if (need.kind.api_version, need.kind.kind) in names]
    try:
        needed_roles = roles(existing, names)
    except UsageError as error:
        yield failed("kinds", str(error), "change the declaration")
        return
    async for finding in _permissions(kube.transport, needed_roles):
        yield finding


def _not_served(kind: KubeKind[Any], error: StoreError) -> CheckFinding:
    check, later = f"kind {kind.name}", f"{error}; it is optional, and is used when it appears"
    if isinstance(error, StoreMissingError):
        if kind.optional:
            return ok(check, later)
        return failed(check, str(error), "install its CustomResourceDefinition: kubectl apply -f …")
    if isinstance(error, UnavailableError):
        advice = "see kubectl get apiservices, and start the server of this API group"
        return warning(check, later, advice) if kind.optional else failed(check, str(error), advice)
    return failed(check, str(error), "allow the user to list the kinds of the cluster")


async def _permissions(
    transport: "Transport", needed: Iterable[Role]
) -> AsyncIterator[CheckFinding]:
    accesses = [
        _Access(role.namespace, rule.api_groups[0], plural, name, verb)
        for role in needed
        for rule in role.rules
        for plural in rule.resources
        for name in rule.resource_names or ("",)
        for verb in rule.verbs
    ]
    denied: dict[_Access, list[str]] = {}
    try:
        async with together() as group:
            answers = {
                access: group.create_task(_allowed(transport, access)) for access in accesses
            }
    except StoreError as error:
        yield failed(PERMISSIONS, str(error), "allow the user to create SelfSubjectAccessReviews")
        return
    for access, answer in answers.items():
        if not answer.result():
            denied.setdefault(access._replace(verb=""), []).append(access.verb)
    for access, verbs in denied.items():
        request = RequestInfo(
            ", ".join(verbs), access.group, access.plural, access.namespace or "", access.name
        )
        advice = "grant what natsctl rbac prints: natsctl rbac … | kubectl apply -f -"
        yield failed(PERMISSIONS, f"may not {request}", advice)
    if accesses and not denied:
        yield ok(PERMISSIONS, f"all {len(accesses)} that natsctl rbac prints")


async def _allowed(transport: "Transport", access: _Access) -> bool:
    attributes = {
        "namespace": access.namespace or "",
        "verb": access.verb,
        "group": access.group,
        "resource": access.plural,
        "name": access.name,
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    body = documents.render({**review, "spec": {"resourceAttributes": attributes}})
    reply = await transport.call("POST", REVIEWS, body=body, safe=True)
    return msgspec.json.decode(reply.body, type=_Review).status.allowed
