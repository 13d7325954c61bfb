"""What a request asks of a kube-apiserver, in the words of its permissions."""

from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import urlsplit

import msgspec

from natsctl.telemetry.tracing import Facts, Span, call_span

_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_OF_MANY = {"get": "list", "delete": "deletecollection"}


class Asked(msgspec.Struct, frozen=True):
    """A verb on a resource, as a Role names them; empty where the request has no such thing."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    def __str__(self) -> str:
        if not self.resource:
            return f"{self.verb} {self.path}"
        group = f".{self.group}" if self.group else ""
        name = f" {self.name!r}" if self.name else ""
        place = f" in namespace {self.namespace!r}" if self.namespace else ""
        return f"{self.verb} {self.resource}{group}{name}{place}"


def asked(method: str, path: str, query: Mapping[str, str] | None = None) -> Asked:
    """Return what a request with this method, path and query asks for."""
    verb = _VERBS.get(method, method.lower())
    match path.strip("/").split("/"):
        case ["api", _, *rest]:
            group = ""
        case ["apis", group, _, *rest]:
            pass
        case _:
            rest, group = [], ""
    namespace = ""
    match rest:
        case ["namespaces" as resource, one, ("status" | "finalize") as part]:
            after = [one, part]
        case ["namespaces", namespace, resource, *after]:
            pass
        case [resource, *after]:
            pass
        case _:
            return Asked(verb, path=path)
    if not after:
        verb = _OF_MANY.get(verb, verb)
    if query and query.get("watch", "").lower() in ("1", "true"):
        verb = "watch"
    name, sub = [*after, "", ""][:2]
    return Asked(verb, group, f"{resource}/{sub}" if sub else resource, namespace, name, path)


def http_span(method: str, asked_for: Callable[[], Asked], server: str, path: str) -> Span:
    """Return the span of sending a request; *asked_for* is called where somebody records.

    Source: OpenTelemetry's semantic conventions for HTTP clients, and for Kubernetes.
    """
    return call_span(partial(_request, method, asked_for, server, path))


def _request(
    method: str, asked_for: Callable[[], Asked], server: str, path: str
) -> tuple[str, Facts]:
    what, url = asked_for(), urlsplit(server)
    in_namespace = {"k8s.namespace.name": what.namespace} if what.namespace else {}
    return f"{method} {what.resource}".rstrip(), {
        "http.request.method": method,
        "url.full": f"{server}{path}",
        "server.address": url.hostname or "",
        "server.port": url.port or (443 if url.scheme == "https" else 80),
        "natsctl.kube.verb": what.verb,
        "natsctl.kube.group": what.group,
        "natsctl.kube.resource": what.resource,
        "natsctl.kube.name": what.name,
        **in_namespace,
    }
