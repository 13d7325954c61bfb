"""The console answers only the browser of its user, and its answers forbid everything else."""

from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import pytest

from tests.support.clients.console_client import ConsoleClient, console_on
from tests.support.servers.nats_server import NatsServer

POLICY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@pytest.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[ConsoleClient]:
    async with console_on(nats_server.url, signed_in=False) as client:
        yield client


async def status(client: ConsoleClient, path: str, **headers: str) -> int:
    async with client.session.get(f"{client.origin}{path}", headers=headers) as answer:
        return answer.status


async def problem(client: ConsoleClient, action: str, **options: Any) -> tuple[int, str]:
    """Return the status and the reason of a refused action."""
    url = f"{client.origin}/api/actions/{action}"
    async with client.session.post(url, **options) as answer:
        return answer.status, (await answer.json())["error"]["reason"]


async def test_only_a_request_with_the_token_as_a_header_is_answered(
    nats_server: NatsServer, client: ConsoleClient
) -> None:
    token = client.access.token
    for path in ("home", "live", "nothing", "recording", "home?token=x", f"home?token={token}"):
        assert await status(client, f"/api/{path}") == 401
        assert await status(client, f"/api/{path}", Authorization="Bearer x") == 401
    assert await status(client, "/api/home", Cookie=f"natsctl-console-token={token}") == 401
    assert await status(client, "/api/home", Authorization=f"Bearer {token}") == 200
    async with console_on(nats_server.url, signed_in=False) as second:
        assert await status(second, "/api/home", Authorization=f"Bearer {token}") == 401
    reply = await client.act("pause", controller="shops", everything=True)
    assert (reply.status, reply.problem[0]) == (401, "signed_out")


async def test_every_answer_has_the_policy(client: ConsoleClient) -> None:
    for _ in range(2):
        for path in ("/", "/nothing", "/api/home", "/api/nothing", "/api/live?view=x"):
            async with client.session.get(f"{client.origin}{path}") as answer:
                assert {name: answer.headers.get(name) for name in POLICY} == POLICY
        client.sign_in()


async def test_a_request_for_another_host_or_of_another_origin_is_refused(
    client: ConsoleClient,
) -> None:
    client.sign_in()
    assert await status(client, "/api/home", Host="evil.example") == 421
    assert await status(client, "/", Host="evil.example") == 421
    body = {"controller": "shops", "everything": True}
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
        refused = await problem(client, "pause", json=body, headers={"Origin": origin})
        assert refused == (403, "refused")


async def test_only_the_files_of_the_page_are_served(client: ConsoleClient) -> None:
    client.sign_in()
    for path, content_type in (("/app.js", "text/javascript"), ("/style.css", "text/css")):
        async with client.session.get(f"{client.origin}{path}") as answer:
            assert (answer.status, answer.content_type) == (200, content_type)
    for path in (
        *("/nothing.js", "/..%2fserver.py", "/%2e%2e/server.py"),
        *("/views/../../server.py", "/views/"),
    ):
        assert await status(client, path) == 404


async def test_a_wrong_request_is_explained(client: ConsoleClient) -> None:
    client.sign_in()
    for body in (b"", b"{", b"[]", b'{"controller": 5}', b"\xff"):
        assert await problem(client, "resync", data=body) == (400, "invalid")
    assert (await client.act("explode", controller="a")).status == 404
    assert (await client.get("explode")).status == 404
    assert (await client.get("live", view="explode")).status == 404
    large = BytesIO(b"x" * 1_100_000)
    async with client.session.post(f"{client.origin}/api/actions/resync", data=large) as answer:
        assert answer.status == 413
