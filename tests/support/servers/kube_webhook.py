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

PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
PROBE = "webhook-probe"  # the name of an object that every webhook here denies

Denies = Callable[[dict[str, Any]], str | dict[str, Any]]
"""Returns why a request is denied, as a message or as a `metav1.Status`; empty to allow it."""


@asynccontextmanager
async def webhook(server: KubeServer, namespace: str, denies: Denies) -> AsyncIterator[None]:
    """Ask *denies* about each ConfigMap that is created or updated in the namespace."""

    async def review(request: web.Request) -> web.Response:
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
    app = web.Application()
    app.router.add_post("/", review)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["configmaps"],
    }
    configuration = {
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "tests.example.com",
                "clientConfig": {
                    "url": f"https://127.0.0.1:{port}/",
                    "caBundle": base64.b64encode(authority.cert_pem.bytes()).decode(),
                },
                "rules": [rule],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }

    async def works() -> bool:
        probe = {"metadata": {"name": PROBE}}
        path = f"/api/v1/namespaces/{namespace}/configmaps?dryRun=All"
        try:
            await server.call("POST", path, probe)
        except AssertionError as refused:
            return "a probe" in str(refused)
        return False

    await server.call("POST", PATH, configuration)
    try:
        await eventually(works)
        yield
    finally:
        await server.call("DELETE", f"{PATH}/{namespace}")

        async def removed() -> bool:
            return not await works()

        await asyncio.shield(eventually(removed))
        await runner.cleanup()
