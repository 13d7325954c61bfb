"""Calls end in time and are retried only if that is safe, and broken watches raise."""

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from natsctl import KubeOptions
from natsctl.errors import (
    ConflictError,
    InvalidObjectError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
    WatchBrokenError,
)
from natsctl.kubernetes.cluster import connecting, load_access
from natsctl.kubernetes.credentials import Access
from natsctl.kubernetes.http import HttpPool
from natsctl.kubernetes.transport import Transport
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_http import Handler, answering, hang, in_turn, lines, reset
from tests.support.servers.ports import free_port

OK = web.Response(body=b"{}")
PATH = "/api/v1/namespaces/shop/configmaps/one"


def to(url: str, **options: Any) -> KubeOptions:
    return KubeOptions(server=url, token="s3cret", **options)


def busy(status: int, **headers: str) -> web.Response:
    return web.Response(status=status, body=b"busy", headers=headers)


async def test_a_request_is_retried_only_if_that_is_safe() -> None:
    answers = in_turn(busy(503), busy(429), reset, OK)
    async with answering(answers) as server, connecting(to(server.url)) as transport:
        assert (await transport.call("GET", PATH)).body == b"{}"
        assert server.requests == [f"GET {PATH}"] * 4
        server.handler = in_turn(busy(503), OK)
        with pytest.raises(StoreError, match="busy"):
            await transport.call("POST", PATH, body=b"{}")
        assert len(server.requests) == 5
        server.handler = in_turn(busy(500), busy(502), reset, busy(504), OK)
        await transport.call("PATCH", PATH, body=b"{}", safe=True)
        assert len(server.requests) == 10
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            server.requests.clear()
            server.handler = in_turn(busy(429, **{"Retry-After": "0"}), OK)
            await transport.call(method, PATH, body=b"{}")
            assert server.requests == [f"{method} {PATH}"] * 2
        server.requests.clear()
        server.handler = in_turn(busy(429, **{"Retry-After": "3600"}))  # beyond the deadline
        with pytest.raises(StoreError, match="busy"):
            await transport.call("GET", PATH)
        assert len(server.requests) == 1


async def test_a_warning_of_the_server_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Warning": '299 - "batch/v1beta1 CronJob is deprecated"'}
    refusal = web.Response(status=404, headers={"Warning": '299 - "say \\"no\\""'})
    answers = in_turn(web.Response(body=b"{}", headers=headers))
    async with answering(answers) as server, connecting(to(server.url)) as transport:
        for _ in range(3):
            await transport.call("GET", PATH)
        server.handler = in_turn(refusal)
        with pytest.raises(StoreError):
            await transport.call("GET", PATH)
    logged = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert logged == [
        "server sent a warning warning='batch/v1beta1 CronJob is deprecated'",
        """server sent a warning warning='say "no"'""",
    ]


async def test_a_write_on_a_broken_connection_is_sent_once_and_has_an_unknown_outcome() -> None:
    for method in ("POST", "PUT", "DELETE"):
        answers = in_turn(OK, reset)
        async with answering(answers) as server, connecting(to(server.url)) as transport:
            await transport.call("GET", PATH)  # so that the next call reuses the connection
            with pytest.raises(StoreTimeoutError, match="unknown"):
                await transport.call(method, PATH, body=b"{}")
        assert server.requests == [f"GET {PATH}", f"{method} {PATH}"]
        assert len(server.connections) == 1


async def test_a_request_that_never_reached_the_server_is_retried() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with connecting(to(url, attempts_max=50)) as transport:
        call = asyncio.create_task(transport.call("POST", PATH, body=b"{}"))
        await asyncio.sleep(0.1)
        assert not call.done()
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            client, _ = await loop.sock_accept(listener)
            with client:
                request = await loop.sock_recv(client, 65_536)
                await loop.sock_sendall(client, b"HTTP/1.1 201 OK\r\nContent-Length: 0\r\n\r\n")
                assert (await call).status == 201
    assert request.startswith(b"POST ")


async def test_the_error_names_a_server_that_refuses_connections() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with connecting(to(url, attempts_max=2)) as transport:
        with pytest.raises(StoreError, match=f"{url} is not reached: connection refused") as raised:
            await transport.call("POST", PATH, body=b"{}")
    assert not isinstance(raised.value, StoreTimeoutError)  # the write certainly had no effect


async def test_attempts_are_bounded_and_retry_after_is_respected() -> None:
    async with (
        answering(in_turn(busy(503))) as server,
        connecting(to(server.url, attempts_max=3)) as transport,
    ):
        with pytest.raises(StoreError, match=r"cannot get configmaps 'one'.*busy"):
            await transport.call("GET", PATH)
        assert len(server.requests) == 3
        server.handler = in_turn(busy(429, **{"Retry-After": "1"}), OK)
        clock = asyncio.get_running_loop().time
        begun = clock()
        await transport.call("GET", PATH)
        assert clock() - begun >= 1.0


async def test_a_call_ends_at_its_deadline_and_a_write_has_an_unknown_outcome() -> None:
    async with answering(hang) as server, connecting(to(server.url)) as transport:
        with pytest.raises(StoreTimeoutError, match="unknown"):
            await transport.call("POST", PATH, body=b"{}", timeout_s=0.1)
        with pytest.raises(StoreTimeoutError) as raised:
            await transport.call("GET", PATH, timeout_s=0.1)
        assert "unknown" not in str(raised.value)


async def test_pending_calls_are_limited_and_neither_watches_nor_cancelled_calls_count() -> None:
    released = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await released.wait()
        return web.Response(body=b"{}")

    async with (
        answering(lines(b"{}\n", then=hang)) as server,
        connecting(to(server.url, in_flight_max=2)) as transport,
        transport.stream("/w", query={}, silence_s=60),
        transport.stream("/w", query={}, silence_s=60),
        transport.stream("/w", query={}, silence_s=60),
    ):
        server.handler = wait
        async with asyncio.TaskGroup() as calls:
            for _ in range(5):
                calls.create_task(transport.call("GET", PATH))
            await eventually(lambda: server.busiest == 5)
            released.set()
        assert server.busiest == 3 + 2
        server.handler = hang
        cancelled = [asyncio.create_task(transport.call("GET", PATH)) for _ in range(2)]
        await eventually(lambda: len(server.requests) == 3 + 5 + 2)
        server.handler = in_turn(OK)
        for call in cancelled:
            call.cancel()
        await transport.call("GET", PATH)  # they have freed their slots


async def test_paths_queries_and_headers_arrive_unchanged() -> None:
    async with answering(in_turn(OK)) as server, connecting(to(server.url)) as transport:
        query = {"labelSelector": "a=b,c in (d e)", "fieldManager": "natsctl/shop&co"}
        await transport.call("GET", "/api/v1/x%2Fy", query=query, accept="application/x")
        await transport.call("PATCH", "/p", body=b"{}", content_type="application/apply-patch+yaml")
    assert server.requests == [
        "GET /api/v1/x%2Fy?labelSelector=a%3Db%2Cc+in+%28d+e%29&fieldManager=natsctl%2Fshop%26co",
        "PATCH /p",
    ]
    assert server.headers[0]["Accept"] == "application/x"
    assert server.headers[0]["Authorization"] == "Bearer s3cret"
    assert server.headers[0]["Accept-Encoding"] == "identity"
    assert server.headers[1]["Content-Type"] == "application/apply-patch+yaml"


async def test_a_response_above_the_limit_is_refused() -> None:
    large = web.Response(body=b"x" * 5000)
    async with answering(in_turn(large)) as server:
        async with connecting(to(server.url, answer_max_bytes=4999)) as transport:
            with pytest.raises(TooLargeError, match="4999 bytes"):
                await transport.call("GET", PATH)
        async with connecting(to(server.url, answer_max_bytes=5000)) as transport:
            assert len((await transport.call("GET", PATH)).body) == 5000
            elsewhere = web.Response(status=302, headers={"Location": "/elsewhere"})
            server.handler = in_turn(elsewhere)  # it isn't followed
            with pytest.raises(StoreError, match="302"):
                await transport.call("GET", PATH)
            server.handler = in_turn(web.Response(status=413, body=b"request is too large"))
            with pytest.raises(TooLargeError):  # read before the end of the body is sent
                await transport.call("POST", "/a", body=b"x" * 4_000_000)
    assert len(server.requests) == 4


async def test_an_error_of_the_server_that_contains_the_token_is_masked() -> None:
    chatty = web.Response(status=400, body=b"what is Bearer s3cret?")
    async with answering(in_turn(chatty)) as server, connecting(to(server.url)) as transport:
        with pytest.raises(InvalidObjectError, match=r"Bearer \*\*\*"):
            await transport.call("GET", PATH)
        with pytest.raises(InvalidObjectError, match=r"Bearer \*\*\*"):
            async with transport.stream("/w", query={}, silence_s=60):
                pass


async def test_a_watch_yields_whole_lines_and_ends_with_the_response() -> None:
    handler = lines(b'{"a"', b":1}\n{}\n\n", b"[", b"]\n")
    async with (
        answering(handler) as server,
        connecting(to(server.url)) as transport,
        transport.stream("/w", query={"watch": "true"}, silence_s=60) as stream,
    ):
        assert [line async for line in stream] == [b'{"a":1}', b"{}", b"[]"]
    assert server.requests == ["GET /w?watch=true"]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (lines(b"{}\n", then=reset), "the connection ended within the response"),
        (lines(b"{}\n", b"{"), "middle of a line"),
        (lines(b"{}\n", b"x" * 2000), "longer than 1000 bytes"),
    ],
)
async def test_an_incomplete_watch_raises(handler: Handler, message: str) -> None:
    async with (
        answering(handler) as server,
        connecting(to(server.url, answer_max_bytes=1000)) as transport,
        transport.stream("/w", query={}, silence_s=60) as stream,
    ):
        assert await anext(stream) == b"{}"
        with pytest.raises(WatchBrokenError, match=message):
            await anext(stream)


async def test_silence_breaks_a_watch_and_a_slow_reader_does_not() -> None:
    async with (
        answering(lines(b"1\n", b"2\n", then=hang)) as server,
        connecting(to(server.url)) as transport,
    ):

        async def is_broken_behind_what_came() -> bool:
            """Retried, because a busy machine may be silent for this time itself."""
            taken, reason = list[bytes](), ""
            try:
                async with transport.stream("/w", query={}, silence_s=0.3) as stream:
                    async for line in stream:
                        taken.append(line)
                        await asyncio.sleep(0.4)
            except WatchBrokenError as error:
                reason = str(error)
            return taken == [b"1", b"2"] and "nothing came for 0.3 s" in reason

        await eventually(is_broken_behind_what_came)


async def test_no_connection_is_left_open() -> None:
    async with answering(lines(b"{}\n", then=hang)) as server:
        async with connecting(to(server.url)) as transport:
            async with transport.stream("/w", query={}, silence_s=60) as stream:
                await anext(stream)
            watched = set(server.connections)
            await eventually(lambda: all(connection.is_closing() for connection in watched))
            server.handler = in_turn(OK)
            await transport.call("GET", PATH)
            idle = server.connections - watched
            assert not any(connection.is_closing() for connection in idle)
        await eventually(lambda: all(connection.is_closing() for connection in idle))
    await eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()})


@pytest.fixture
async def transport(kube_server: KubeServer) -> AsyncIterator[Transport]:
    async with connecting(KubeOptions(kubeconfig=str(kube_server.kubeconfig()))) as transport:
        yield transport


async def test_errors_of_a_real_server_become_natsctl_errors(
    transport: Transport, kube_namespace: str
) -> None:
    collection = f"/api/v1/namespaces/{kube_namespace}/configmaps"
    connection = json.dumps({"metadata": {"name": "one"}, "data": {"a": "1"}}).encode()
    await transport.call("POST", collection, body=connection)
    with pytest.raises(ConflictError, match="already exists"):
        await transport.call("POST", collection, body=connection)
    with pytest.raises(NotFoundError, match="configmaps 'two'"):
        await transport.call("GET", f"{collection}/two")
    with pytest.raises(StoreMissingError, match="there is no namespace 'nowhere'"):
        await transport.call("POST", "/api/v1/namespaces/nowhere/configmaps", body=connection)
    for path in ("/api/v1/nothings", "/apis/no.such/v1/things", f"{collection}/one/nothing"):
        with pytest.raises(StoreMissingError, match="no such kind"):
            await transport.call("GET", path)
    with pytest.raises(InvalidObjectError, match=r"metadata\.name"):
        await transport.call("POST", collection, body=b'{"metadata": {"name": "No!"}}')
    with pytest.raises(InvalidObjectError):
        await transport.call("POST", collection, body=b"{")
    changed = {"metadata": {"name": "one", "resourceVersion": "1"}}
    with pytest.raises(ConflictError, match="modified"):
        await transport.call("PUT", f"{collection}/one", body=json.dumps(changed).encode())
    other_uid = json.dumps({"preconditions": {"uid": "another"}}).encode()
    with pytest.raises(ConflictError, match="another"):
        await transport.call("DELETE", f"{collection}/one", body=other_uid)
    apply = "application/apply-patch+yaml"
    for wrong in ({"data": {"a": 1}}, {"dota": {"a": "1"}}):
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", **wrong}
        body, query = json.dumps(manifest).encode(), {"fieldManager": "ann"}
        with pytest.raises(InvalidObjectError, match=next(iter(wrong))):
            await transport.call(
                "PATCH", f"{collection}/one", query=query, body=body, content_type=apply, safe=True
            )
    huge = json.dumps({"metadata": {"name": "huge"}, "data": {"a": "x" * 4_000_000}}).encode()
    with pytest.raises(TooLargeError):
        await transport.call("POST", collection, body=huge)


def raw(content: bytes, *, ends: bool = False) -> Handler:
    """Return a handler that sends these bytes before its response, or instead of it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(content)
        if ends:
            request.transport.close()
        return web.Response(body=b"{}")

    return handle


async def test_a_connection_that_the_server_ends_is_not_used_again() -> None:
    old = raw(b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}', ends=True)  # its end is the body's
    async with answering(old) as server, connecting(to(server.url)) as transport:
        assert (await transport.call("GET", "/a")).body == b'{"a": 1}'
        assert (await transport.call("GET", "/b")).body == b'{"a": 1}'
        assert len(server.connections) == 2
        last = web.Response(body=b"{}", headers={"Connection": "close"})
        server.handler = in_turn(last, OK)
        await transport.call("POST", "/a")
        await transport.call("POST", "/b")
        assert len(server.connections) == 4


def response(body: bytes, *headers: str) -> bytes:
    """Return the bytes of a response with this body."""
    lines = ("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


async def test_a_response_to_no_request_is_not_taken_for_the_next_one() -> None:
    twice = raw(response(b'{"a": 1}') + response(b'{"a": 2}'))
    async with answering(in_turn(twice, OK)) as server, connecting(to(server.url)) as transport:
        assert (await transport.call("GET", "/a")).body == b'{"a": 1}'
        assert (await transport.call("GET", "/b")).body == b"{}"
    assert len(server.connections) == 2


async def test_a_response_that_is_not_http_is_reported() -> None:
    endless = raw(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000)
    ssh_banner = raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ends=True)
    for response in (endless, ssh_banner):
        async with answering(response) as server, connecting(to(server.url)) as transport:
            with pytest.raises(StoreTimeoutError, match="the response is not HTTP"):
                await transport.call("POST", "/a")


@asynccontextmanager
async def pooling(*, idle_s: float = 60.0) -> AsyncIterator[HttpPool]:
    async with aiohttp.TCPConnector(limit=0) as connector:
        yield HttpPool(connector, 5.0, idle_s=idle_s)


async def get(pool: HttpPool, access: Access, path: str) -> bytes:
    reply = await pool.send(access, "GET", path, (), None)
    return await reply.read(100)


async def test_new_credentials_are_sent_over_the_same_connection() -> None:
    async with answering(in_turn(OK)) as server, pooling() as pool:
        access = await load_access(to(server.url), None)
        await get(pool, access, "/a")
        renewed = (("Authorization", "Bearer renewed"),)
        await get(pool, msgspec.structs.replace(access, headers=renewed), "/b")
    assert [sent["Authorization"] for sent in server.headers] == ["Bearer s3cret", "Bearer renewed"]
    assert len(server.connections) == 1


async def test_a_connection_is_not_used_for_another_server() -> None:
    async with (
        answering(in_turn(OK)) as first_server,
        answering(in_turn(OK)) as second_server,
        pooling() as pool,
    ):
        access = await load_access(to(first_server.url), None)
        await get(pool, access, "/a")
        await get(pool, await load_access(to(second_server.url), None), "/b")
        (connection,) = first_server.connections
        await eventually(connection.is_closing)
        await get(pool, access, "/c")
    assert (first_server.requests, second_server.requests) == (["GET /a", "GET /c"], ["GET /b"])


async def test_a_proxy_gets_the_address_of_a_server_without_tls(tmp_path: Path) -> None:
    async with answering(in_turn(OK)) as proxy:
        kubeconfig = tmp_path / "config"
        named = proxy.url.replace("//", "//ann:s3cret@")
        cluster = {"server": "http://kube.test:8080/root/", "proxy-url": named}
        kubeconfig.write_text(json.dumps(config(cluster)))
        async with connecting(KubeOptions(kubeconfig=str(kubeconfig))) as transport:
            await transport.call("GET", "/version", query={"a": "b"})
            await transport.call("GET", "/version")
    address = "http://kube.test:8080/root/version"
    assert proxy.requests == [f"GET {address}?a=b", f"GET {address}"]
    credentials = "Basic " + base64.b64encode(b"ann:s3cret").decode()
    assert [sent["Proxy-Authorization"] for sent in proxy.headers] == [credentials] * 2
    assert [sent["Host"] for sent in proxy.headers] == ["kube.test:8080"] * 2


def config(cluster: dict[str, str]) -> dict[str, Any]:
    """Return a kubeconfig with one cluster."""
    return {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": {"token": "s3cret"}}],
    }


async def test_a_path_or_a_header_that_is_not_encoded_is_not_sent() -> None:
    async with answering(in_turn(OK)) as server, connecting(to(server.url)) as transport:
        for path in ("/a b", "/a\r\nX-Evil: 1", "/ä", ""):
            with pytest.raises(ValueError, match="percent-encoded"):
                await transport.call("GET", path)
        with pytest.raises(ValueError, match="control character"):
            await transport.call("PUT", "/a", body=b"", content_type="a\r\nX-Evil: 1")
    assert server.requests == []
