"""The spans of what is asked of a kube-apiserver: one for each time that a request is sent."""

from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from natsctl.kubernetes.http.request import Asked
from natsctl.telemetry.tracing import Facts, Span, call_span


def http_span(method: str, asked: Callable[[], Asked], server: str, path: str) -> Span:
    """Return the span of sending a request; *asked* is called where somebody records.

    Source: OpenTelemetry's semantic conventions for HTTP clients, and for Kubernetes.
    """
    return call_span(partial(_request, method, asked, server, path))


def _request(method: str, asked: Callable[[], Asked], server: str, path: str) -> tuple[str, Facts]:
    what, url = asked(), urlsplit(server)
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
