"""Checks a Kubernetes cluster: connection, version, clock, kinds and permissions."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from natsctl.core.task_group import together
from natsctl.daemon.doctor.finding import CheckFinding, failed, ok, skew, warning
from natsctl.daemon.rbac import Names, Need, roles
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

if TYPE_CHECKING:
    from natsctl.kubernetes.cluster import Kube
    from natsctl.kubernetes.transport import Transport

CLUSTER, PERMISSIONS, CLOCK = "kubernetes", "kubernetes permissions", "kubernetes clock"
IDENTITY = "kubernetes identity"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
OLDEST = (1, 20)


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    major: str = ""
    minor: str = ""
    git_version: str = ""


class _Access(NamedTuple):
    namespace: str | None
    group: str
    plural: str
    name: str
    verb: str


async def check_kube(
    options: KubeOptions | None, needed: Sequence[Need]
) -> AsyncIterator[CheckFinding]:
    """Yield the findings about a cluster, without changing anything in it.

    There are no findings if the controllers need no cluster. *options* is None if a connection is
    forbidden.
    """
    if not needed:
        return
    if options is None:
        kinds = ", ".join(dict.fromkeys(need.kind.name for need in needed))
        found = f"{kinds} is kept there, and --no-kube forbids a connection"
        yield failed(CLUSTER, found, "remove --no-kube")
        return
    from natsctl.kubernetes.cluster import connect_kube  # noqa: PLC0415 - the import takes a third of a second

    try:
        async with connect_kube(options) as kube:
            names: Names = {}
            for part in (_server(kube), _kinds(kube, needed, names)):
                async for finding in part:
                    yield finding
            existing = [need for need in needed if (need.kind.api_version, need.kind.kind) in names]
            async for finding in _permissions(kube.transport, existing, names):
                yield finding
    except (ConnectError, StoreError, UsageError) as error:
        advice = "check that the server runs, or select another one: --kubeconfig, --kube-context"
        yield failed(CLUSTER, str(error), advice)


async def _server(kube: "Kube") -> AsyncIterator[CheckFinding]:
    before = datetime.now(UTC)
    reply = await kube.transport.call("GET", "/version")
    after, server = datetime.now(UTC), kube.transport.server
    try:
        version = msgspec.json.decode(reply.body, type=_Version)
    except DECODE_ERRORS as error:
        raise ConnectError(f"{server} does not answer as a kube-apiserver does") from error
    found = f"{server}, version {version.git_version}"
    numbers = (version.major, version.minor.rstrip("+"))
    if all(number.isdecimal() for number in numbers) and tuple(map(int, numbers)) < OLDEST:
        yield warning(CLUSTER, found, "its server-side apply is not reliable: update the cluster")
    else:
        yield ok(CLUSTER, found)
    with suppress(ValueError):
        date = parsedate_to_datetime(reply.date)
        if date.tzinfo is not None:
            yield skew(CLOCK, before, date, after)
    try:
        yield ok(IDENTITY, await kube.identity())
    except (PermissionDeniedError, NotFoundError) as error:
        found = f"daemons of two clusters would not notice each other: {error}"
        yield warning(IDENTITY, found, "grant what natsctl rbac prints about kube-system")


async def _kinds(kube: "Kube", needed: Sequence[Need], names: Names) -> AsyncIterator[CheckFinding]:
    for kind in {(need.kind.api_version, need.kind.kind): need.kind for need in needed}.values():
        check = f"kind {kind.name}"
        try:
            resource = await kube.resource(kind.api_version, kind.kind)
        except StoreError as error:
            later = f"{error}; it is optional, and is used when it appears"
            if isinstance(error, StoreMissingError) and kind.optional:
                yield ok(check, later)
            elif isinstance(error, StoreMissingError):
                advice = "install its CustomResourceDefinition: kubectl apply -f …"
                yield failed(check, str(error), advice)
            elif isinstance(error, UnavailableError):
                advice = "see kubectl get apiservices, and start the server of this API group"
                judged = warning if kind.optional else failed
                yield judged(check, later if kind.optional else str(error), advice)
            else:
                yield failed(check, str(error), "allow the user to list the kinds of the cluster")
        else:
            names[kind.api_version, kind.kind] = ResourceName(
                kind.api_version.rpartition("/")[0], resource.plural, resource.namespaced
            )
            yield ok(check, f"{resource.plural} of {kind.api_version}")


async def _permissions(
    transport: "Transport", needed: Sequence[Need], names: Names
) -> AsyncIterator[CheckFinding]:
    try:
        accesses = [
            _Access(role.namespace, rule.api_groups[0], plural, name, verb)
            for role in roles(needed, names)
            for rule in role.rules
            for plural in rule.resources
            for name in rule.resource_names or ("",)
            for verb in rule.verbs
        ]
    except UsageError as error:
        yield failed("kinds", str(error), "change the declaration")
        return
    try:
        async with together() as group:
            answers = {
                access: group.create_task(_allowed(transport, access)) for access in accesses
            }
    except StoreError as error:
        yield failed(PERMISSIONS, str(error), "allow the user to create SelfSubjectAccessReviews")
        return
    denied: dict[_Access, list[str]] = {}
    for access, answer in answers.items():
        if not answer.result():
            denied.setdefault(access._replace(verb=""), []).append(access.verb)
    for (namespace, group_name, plural, name, _), verbs in denied.items():
        request = RequestInfo(", ".join(verbs), group_name, plural, namespace or "", name)
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
    status = documents.parse(reply.body).get("status")
    return isinstance(status, dict) and status.get("allowed") is True
