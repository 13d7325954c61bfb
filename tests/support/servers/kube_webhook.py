"""A validating webhook of a kube-apiserver on this machine."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trustme
from aiohttp import web

from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_http import answering

PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
PROBE = "webhook-probe"  # the name of an object that every webhook here denies

Denies = Callable[[dict[str, Any]], str | dict[str, Any]]
"""Returns why a request is denied, as a message or as a `metav1.Status`; empty to allow it."""


@asynccontextmanager
async def webhook(server: KubeServer, namespace: str, denies: Denies) -> AsyncIterator[None]:
    """Ask *denies* about each ConfigMap that is created or updated in the namespace."""

    async def review(request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["request"]
        reason: str | dict[str, Any] = "a probe"
        if asked["name"] != PROBE:
            reason = denies(asked) if asked["namespace"] == namespace else ""
        status = {"message": reason} if isinstance(reason, str) else reason
        response = {"uid": asked["uid"], "allowed": not reason, "status": status}
        answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**answer, "response": response})

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["configmaps"],
    }

    async def works() -> bool:
        probe = {"metadata": {"name": PROBE}}
        path = f"/api/v1/namespaces/{namespace}/configmaps?dryRun=All"
        try:
            await server.call("POST", path, probe)
        except AssertionError as refused:
            return "a probe" in str(refused)
        return False

    async def removed() -> bool:
        return not await works()

    async with answering(review, context) as served:
        bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
        hook = {
            "name": "tests.example.com",
            "clientConfig": {"url": f"{served.url}/", "caBundle": bundle},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        await server.call("POST", PATH, {"metadata": {"name": namespace}, "webhooks": [hook]})
        try:
            await eventually(works)
            yield
        finally:
            await server.call("DELETE", f"{PATH}/{namespace}")
            await asyncio.shield(eventually(removed))
