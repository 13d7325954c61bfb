"""Describes a request to a kube-apiserver by the verb and the resource that RBAC checks."""

from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import urlsplit

import msgspec

from natsctl.telemetry.tracing import Attributes, Span, call_span

_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_COLLECTION_VERBS = {"get": "list", "delete": "deletecollection"}


class RequestInfo(msgspec.Struct, frozen=True):
    """The verb and the resource of a request, as in a Role. A part that the request lacks is empty.

    As text: `patch deployments/status.apps 'web' in namespace 'shop'`.
    """

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    def __str__(self) -> str:
        if not self.resource:
            return f"{self.verb} {self.path}".rstrip()
        group = f".{self.group}" if self.group else ""
        name = f" {self.name!r}" if self.name else ""
        namespace = f" in namespace {self.namespace!r}" if self.namespace else ""
        return f"{self.verb} {self.resource}{group}{name}{namespace}"


def request_info(method: str, path: str, query: Mapping[str, str] | None = None) -> RequestInfo:
    """Return the verb and the resource of a request with this method, path and query."""
    verb = _VERBS.get(method, method.lower())
    match path.strip("/").split("/"):
        case ["api", _, *segments]:
            group = ""
        case ["apis", group, _, *segments]:
            pass
        case _:
            segments, group = [], ""
    namespace = ""
    match segments:
        case ["namespaces" as resource, _, "status" | "finalize"]:
            object_path = segments[1:]
        case ["namespaces", namespace, resource, *object_path]:
            pass
        case [resource, *object_path]:
            pass
        case _:
            return RequestInfo(verb, path=path)
    if not object_path:
        verb = _COLLECTION_VERBS.get(verb, verb)
    if query and query.get("watch", "").lower() in ("1", "true"):
        verb = "watch"
    name, subresource = [*object_path, "", ""][:2]
    if subresource:
        resource = f"{resource}/{subresource}"
    return RequestInfo(verb, group, resource, namespace, name, path)


def request_span(method: str, server: str, path: str, info: Callable[[], RequestInfo]) -> Span:
    """Return the span of one attempt to send a request; *info* is called only if it is recorded.

    Source: OpenTelemetry's semantic conventions for HTTP clients and for Kubernetes.
    """
    return call_span(partial(_attributes, method, server, path, info))


def _attributes(
    method: str, server: str, path: str, info: Callable[[], RequestInfo]
) -> tuple[str, Attributes]:
    request, url = info(), urlsplit(server)
    namespace = {"k8s.namespace.name": request.namespace} if request.namespace else {}
    return f"{method} {request.resource}".rstrip(), {
        "http.request.method": method,
        "url.full": f"{server}{path}",
        "server.address": url.hostname or "",
        "server.port": url.port or (443 if url.scheme == "https" else 80),
        "natsctl.kube.verb": request.verb,
        "natsctl.kube.group": request.group,
        "natsctl.kube.resource": request.resource,
        "natsctl.kube.name": request.name,
        **namespace,
    }
