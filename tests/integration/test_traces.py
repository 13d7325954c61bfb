"""Requests to NATS and to a cluster are spans below the span of their sync."""

from collections.abc import Iterator

import pytest
from aiohttp import web
from msgspec.structs import replace
from opentelemetry.trace import SpanKind, StatusCode

from natsctl import ConflictError, KubeOptions, NotFoundError, StoreError, StoreTimeoutError, kv
from natsctl.kubernetes.cluster import connecting
from natsctl.model.store import Store
from natsctl.telemetry.tracing import sync_span
from tests.support.clients.nats import Nats
from tests.support.clients.span_recorder import Recording, recording
from tests.support.servers.kube_http import answering, in_turn
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

PATH = "/apis/apps/v1/namespaces/shop/deployments/one"
OK = web.Response(body=b"{}")


@pytest.fixture
def recorded() -> Iterator[Recording]:
    with recording() as recording_of_test:
        yield recording_of_test


@pytest.fixture
async def store(nats: Nats) -> Store:
    return await nats.open(kv(dict, bucket="things"))


async def test_each_operation_on_a_key_is_a_span(store: Store, recorded: Recording) -> None:
    with sync_span("things", dict):
        first = await store.create("a", b"{}")
        second = await store.update("a", b"[]", revision=first.revision)
        await store.get("a")
        await store.delete("a", revision=second.revision)
        await store.delete("a", purge=True)
    (sync,) = recorded.named("sync things")
    below = recorded.below(sync)
    names = ["create", "update", "get", "delete", "get", "purge"]
    assert [span.name for span in below] == [f"kv {name} things" for name in names]
    assert {span.kind for span in below} == {SpanKind.CLIENT}
    assert below[0].attributes == {
        "db.system.name": "nats",
        "db.operation.name": "create",
        "db.collection.name": "things",
        "natsctl.kv.key": "a",
    }
    request, *_ = recorded.below(below[2])  # a late answer causes another request
    assert request.name == "jetstream STREAM.MSG.GET"
    assert request.attributes == {
        "rpc.system": "nats",
        "rpc.service": "jetstream",
        "rpc.method": "STREAM.MSG.GET.KV_things",
    }


async def test_a_conflict_is_an_error_of_the_span_and_a_missing_key_is_not(
    nats: Nats, nats_server: NatsServer, store: Store, recorded: Recording
) -> None:
    """A request that times out is one too."""
    await store.create("a", b"{}")
    with sync_span("things", dict):
        with pytest.raises(ConflictError):
            await store.update("a", b"[]", revision=77)
        with pytest.raises(NotFoundError):
            await store.get("b")
    (update,) = recorded.named("kv update things")
    (get,) = recorded.named("kv get things")
    assert update.status.description == "ConflictError: a of things changed since it was read"
    assert get.status.status_code is StatusCode.UNSET
    nats_server.pause()
    try:
        with sync_span("things", dict), pytest.raises(StoreTimeoutError):
            await nats.connection.api("STREAM.INFO.KV_things", timeout_s=0.05)
    finally:
        nats_server.resume()
    late = recorded.named("jetstream STREAM.INFO")[-1]
    assert str(late.status.description).startswith("StoreTimeoutError: $JS.API.STREAM.INFO")


def to(url: str) -> KubeOptions:
    return KubeOptions(server=url, token="s3cret-token")


async def test_each_attempt_of_a_request_is_a_span(recorded: Recording) -> None:
    responses = in_turn(web.Response(status=503, body=b"busy"), OK)
    async with answering(responses) as server, connecting(to(server.url)) as transport:
        with sync_span("things", dict):
            await transport.call("GET", PATH)
        headers, port = server.headers, int(server.url.rpartition(":")[2])
    (sync,) = recorded.named("sync things")
    refused_span, answered_span = recorded.below(sync)
    assert refused_span.name == answered_span.name == "GET deployments"
    assert answered_span.attributes == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "url.full": f"{server.url}{PATH}",
        "server.address": "127.0.0.1",
        "server.port": port,
        "k8s.namespace.name": "shop",
        "natsctl.kube.verb": "get",
        "natsctl.kube.group": "apps",
        "natsctl.kube.resource": "deployments",
        "natsctl.kube.name": "one",
    }
    assert refused_span.attributes is not None
    assert refused_span.attributes["http.response.status_code"] == 503
    assert refused_span.status.status_code is StatusCode.ERROR
    for span, sent in zip((refused_span, answered_span), headers, strict=True):
        trace, span_id = f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
        assert sent["traceparent"].startswith(f"00-{trace}-{span_id}-")


async def test_an_unreachable_server_is_an_error_without_a_status_code(
    recorded: Recording,
) -> None:
    server = to(f"http://127.0.0.1:{free_port()}")
    async with connecting(replace(server, attempts_max=1)) as transport:
        with sync_span("things", dict), pytest.raises(StoreError):
            await transport.call("DELETE", PATH)
    first = recorded.named("DELETE deployments")[0]
    assert str(first.status.description).startswith("StoreError: cannot delete deployments")
    assert "http.response.status_code" not in (first.attributes or {})


async def test_no_span_contains_a_secret(recorded: Recording) -> None:
    echo = web.Response(status=403, body=b"no entry for s3cret-token")
    async with answering(in_turn(echo)) as server, connecting(to(server.url)) as transport:
        with pytest.raises(StoreError), sync_span("things", dict):
            await transport.call("PUT", PATH, body=b"{}")
        with pytest.raises(ValueError, match="s3cret"), sync_span("things", dict):
            raise ValueError("it said s3cret-token")
    assert len(recorded.spans) == 3
    assert all("***" in str(span.status.description) for span in recorded.spans)
    assert all("s3cret" not in span.to_json() for span in recorded.spans)
