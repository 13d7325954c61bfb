"""Requests over pooled connections follow HTTP, and nothing breaks out of a line of a request."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from natsctl import KubeOptions
from natsctl.errors import StoreTimeoutError, TooLargeError
from natsctl.kubernetes.cluster import connecting, load_access
from natsctl.kubernetes.credentials import Access
from natsctl.kubernetes.http import HttpPool
from tests.support.eventually import eventually
from tests.support.servers.kube_http import Handler, answering, in_turn

OK = web.Response(body=b"{}")


def to(url: str) -> KubeOptions:
    return KubeOptions(server=url, token="s3cret")


def raw(content: bytes, *, ends: bool = False) -> Handler:
    """Return a handler that sends these bytes before its response, or instead of it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(content)
        if ends:
            request.transport.close()
        return web.Response(body=b"{}")

    return handle


async def test_a_refusal_before_the_end_of_the_body_is_read() -> None:
    refusal = web.Response(status=413, body=b"request is too large")
    async with answering(in_turn(refusal)) as server, connecting(to(server.url)) as transport:
        with pytest.raises(TooLargeError):
            await transport.call("POST", "/a", body=b"x" * 4_000_000)


async def test_no_compressed_response_is_asked_for() -> None:
    reply = web.Response(body=b"{}")
    async with answering(in_turn(reply)) as server, connecting(to(server.url)) as transport:
        await transport.call("GET", "/a")
    assert server.headers[0]["Accept-Encoding"] == "identity"


async def test_a_response_without_a_length_ends_with_its_connection() -> None:
    old = raw(b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}', ends=True)
    async with answering(old) as server, connecting(to(server.url)) as transport:
        assert (await transport.call("GET", "/a")).body == b'{"a": 1}'
        assert (await transport.call("GET", "/b")).body == b'{"a": 1}'
    assert len(server.connections) == 2


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


async def test_a_connection_that_the_server_ends_is_not_used_again() -> None:
    last = web.Response(body=b"{}", headers={"Connection": "close"})
    async with answering(in_turn(last, OK)) as server, connecting(to(server.url)) as transport:
        await transport.call("POST", "/a")
        await transport.call("POST", "/b")
    assert len(server.connections) == 2


async def test_headers_above_the_limit_are_refused() -> None:
    endless = raw(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000)
    async with answering(endless) as server, connecting(to(server.url)) as transport:
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


async def test_a_server_of_another_protocol_is_reported() -> None:
    ssh_banner = raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ends=True)
    async with answering(ssh_banner) as server, connecting(to(server.url)) as transport:
        with pytest.raises(StoreTimeoutError, match="the response is not HTTP"):
            await transport.call("POST", "/a")


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


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX-Evil: 1", "/ä", ""])
async def test_a_path_that_is_not_encoded_is_not_sent(path: str) -> None:
    async with answering(in_turn(OK)) as server, connecting(to(server.url)) as transport:
        with pytest.raises(ValueError, match="percent-encoded"):
            await transport.call("GET", path)
    assert server.requests == []


async def test_a_header_with_a_line_end_is_not_sent() -> None:
    async with answering(in_turn(OK)) as server, connecting(to(server.url)) as transport:
        with pytest.raises(ValueError, match="control character"):
            await transport.call("PUT", "/a", body=b"", content_type="a\r\nX-Evil: 1")
    assert server.requests == []
