"""Requests over pooled connections follow HTTP, and nothing breaks out of a line of a request."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from natsctl.errors import StoreTimeoutError, TooLargeError
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.connect import connecting
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


async def test_responses_before_the_final_one_are_skipped() -> None:
    hints = raw(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
    async with answering(hints) as server, connecting(to(server.url)) as transport:
        assert (await transport.call("GET", "/a")).body == b"{}"
        assert (await transport.call("GET", "/b")).status == 200
    assert len(server.connections) == 1


async def test_a_body_of_several_pieces_arrives_complete() -> None:
    received = []

    async def receive(request: web.Request) -> web.StreamResponse:
        received.append((request.content_length, await request.content.read()))
        return web.Response(body=b"{}")

    body = json.dumps({"text": "x" * 700_000}).encode()
    async with answering(receive) as server, connecting(to(server.url)) as transport:
        await transport.call("POST", "/a", body=body)
        await transport.call("POST", "/b", body=b"{}")
    assert received == [(len(body), body), (2, b"{}")]


async def test_a_refusal_before_the_end_of_the_body_is_read() -> None:
    refusal = web.Response(status=413, body=b"request is too large")
    async with answering(in_turn(refusal)) as server, connecting(to(server.url)) as transport:
        with pytest.raises(TooLargeError):
            await transport.call("POST", "/a", body=b"x" * 4_000_000)


async def test_a_compressed_response_is_unpacked() -> None:
    packed = web.Response(body=gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"})
    async with answering(in_turn(packed)) as server, connecting(to(server.url)) as transport:
        assert (await transport.call("GET", "/a")).body == b'{"a": 1}'
    assert "gzip" in server.headers[0]["Accept-Encoding"]


async def test_a_response_without_a_length_ends_with_its_connection() -> None:
    old = raw(b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}', ends=True)
    async with answering(old) as server, connecting(to(server.url)) as transport:
        assert (await transport.call("GET", "/a")).body == b'{"a": 1}'
        assert (await transport.call("GET", "/b")).body == b'{"a": 1}'
    assert len(server.connections) == 2


async def test_a_server_of_another_protocol_is_reported() -> None:
    other = raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ends=True)
    async with answering(other) as server, connecting(to(server.url)) as transport:
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
