"""The console answers only the browser of its user, and its answers forbid everything else."""

from collections.abc import AsyncIterator
from io import BytesIO

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


@pytest.mark.parametrize(
    "path", ["/api/home", "/api/live", "/api/nothing", "/api/recording", "/api/home?token=x"]
)
async def test_a_request_without_the_token_gets_no_answer(client: ConsoleClient, path: str) -> None:
    assert await status(client, path) == 401
    assert await status(client, path, Authorization="Bearer x") == 401


async def test_the_token_counts_only_as_a_header(client: ConsoleClient) -> None:
    token = client.access.token
    assert await status(client, f"/api/home?token={token}") == 401
    assert await status(client, "/api/home", Cookie=f"natsctl-console-token={token}") == 401
    assert await status(client, "/api/home", Authorization=f"Bearer {token}") == 200


@pytest.mark.parametrize("path", ["/", "/nothing", "/api/home", "/api/nothing", "/api/live?view=x"])
@pytest.mark.parametrize("signed_in", [True, False])
async def test_every_answer_has_the_policy(
    client: ConsoleClient, path: str, *, signed_in: bool
) -> None:
    if signed_in:
        client.sign_in()
    async with client.session.get(f"{client.origin}{path}") as answer:
        assert {name: answer.headers.get(name) for name in POLICY} == POLICY


async def test_a_request_for_another_host_is_refused(client: ConsoleClient) -> None:
    client.sign_in()
    assert await status(client, "/api/home", Host="evil.example") == 421
    assert await status(client, "/", Host="evil.example") == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null"])
async def test_an_action_of_another_origin_is_refused(client: ConsoleClient, origin: str) -> None:
    client.sign_in()
    url = f"{client.origin}/api/actions/pause"
    body = {"controller": "shops", "everything": True}
    async with client.session.post(url, json=body, headers={"Origin": origin}) as answer:
        assert (answer.status, (await answer.json())["error"]["reason"]) == (403, "refused")


async def test_an_action_without_the_token_is_refused(client: ConsoleClient) -> None:
    reply = await client.act("pause", controller="shops", everything=True)
    assert (reply.status, reply.problem[0]) == (401, "signed_out")


async def test_the_files_of_the_page_have_their_types(client: ConsoleClient) -> None:
    client.sign_in()
    for path, content_type in (("/app.js", "text/javascript"), ("/style.css", "text/css")):
        async with client.session.get(f"{client.origin}{path}") as answer:
            assert (answer.status, answer.content_type) == (200, content_type)


@pytest.mark.parametrize(
    "path",
    ["/nothing.js", "/..%2fserver.py", "/%2e%2e/server.py", "/views/../../server.py", "/views/"],
)
async def test_no_other_file_is_served(client: ConsoleClient, path: str) -> None:
    client.sign_in()
    assert await status(client, path) == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"controller": 5}', b"\xff"])
async def test_an_action_with_an_invalid_body_is_explained(
    client: ConsoleClient, body: bytes
) -> None:
    client.sign_in()
    url = f"{client.origin}/api/actions/resync"
    async with client.session.post(url, data=body) as answer:
        assert (answer.status, (await answer.json())["error"]["reason"]) == (400, "invalid")


async def test_an_unknown_action_and_an_unknown_answer_are_not_found(client: ConsoleClient) -> None:
    client.sign_in()
    assert (await client.act("explode", controller="a")).status == 404
    assert (await client.get("explode")).status == 404
    assert (await client.get("live", view="explode")).status == 404


async def test_a_request_that_is_too_large_is_refused(client: ConsoleClient) -> None:
    client.sign_in()
    url = f"{client.origin}/api/actions/resync"
    async with client.session.post(url, data=BytesIO(b"x" * 1_100_000)) as answer:
        assert answer.status == 413


async def test_two_consoles_do_not_share_their_tokens(nats_server: NatsServer) -> None:
    async with (
        console_on(nats_server.url) as first_console,
        console_on(nats_server.url) as second_console,
    ):
        token = first_console.access.token
        assert await status(second_console, "/api/home", Authorization=f"Bearer {token}") == 401
