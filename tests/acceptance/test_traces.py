"""`natsctl run --otlp` sends traces to a collector, and never waits for it."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.otlp_collector import CollectedSpan, Collector, collecting
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

SHOPS = """
import logging
from natsctl import Controller, Object, kv, primary, secondary

class Thing(Object, frozen=True):
    spec: dict[str, object] = {}

class Shops(Controller):
    shops = primary(kv(Thing, bucket="shops"))
    doors = secondary(kv(Thing, bucket="doors"))

    async def sync_handler(self, key):
        from opentelemetry import trace
        with trace.get_tracer("mine").start_as_current_span("thinking"):
            logging.getLogger("mine").info("syncing")
            if key == "bad":
                raise ValueError("refused: postgres://ann:hush@db and Bearer hush.hush.hush")
        await self.doors.apply(key, Thing(spec={"open": True}))
"""

SENT_SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_SERVICE_NAME": "the-shops"}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as running:
        yield running


@pytest.fixture
def natsctl(folder: Path, nats_server: NatsServer) -> Natsctl:
    (folder / "shops.py").write_text(SHOPS)
    return Natsctl(folder, nats_server.url, environ=SENT_SOON)


def synced(collector: Collector, key: str) -> CollectedSpan:
    """Return the span of the first sync of a key, and check that it exists."""
    spans_of_key = [
        span for span in collector.named("sync shops") if span.facts["natsctl.key"] == key
    ]
    assert spans_of_key
    return spans_of_key[0]


async def test_a_put_is_traced_with_its_sync_and_its_writes(
    natsctl: Natsctl, collector: Collector
) -> None:
    words = ("run", "-c", "shops:Shops", "--log-format", "json", "--otlp", collector.url)
    async with natsctl.running(*words) as running:
        await running.logged("primaries listed, syncing")
        await natsctl.done("put", "shops", "a", "spec: {size: 1}")
        sync = await eventually(lambda: synced(collector, "a"))
        assert await running.ends(signal.SIGTERM) == 0
        lines = [json.loads(line) for line in running.log.splitlines()]

    assert sync.service == "the-shops"
    assert sync.parent == ""
    assert sync.error is None
    attributes = ("natsctl.controller", "natsctl.key", "natsctl.operation", "natsctl.attempt")
    assert [sync.facts[name] for name in attributes] == ["shops", "a", "put", 1]
    below = {span.name: span for span in collector.below(sync)}
    write = below["kv create doors"]
    assert write.trace == sync.trace
    assert write.facts == {
        "db.system.name": "nats",
        "db.operation.name": "create",
        "db.collection.name": "doors",
        "natsctl.kv.key": "a",
    }
    (line,) = [line for line in lines if line["message"] == "syncing"]
    assert (line["trace_id"], line["span_id"]) == (sync.trace, below["thinking"].id)
    assert all("trace_id" not in line for line in lines if "key" not in line)
    watches = [span for span in collector.spans if span.name.startswith("watch ")]
    kinds = {"Thing.shops", "Thing.doors", "bytes.natsctl"}  # natsctl has the pauses
    assert {span.facts["natsctl.kind"] for span in watches} == kinds
    requests = {span.name for parent in watches for span in collector.below(parent)}
    assert "jetstream CONSUMER.CREATE" in requests


async def test_the_span_of_a_failed_sync_has_the_error_without_secrets(
    natsctl: Natsctl, collector: Collector, jetstream: JetStreamContext
) -> None:
    url = collector.url.replace("://", "://ann:hush@")
    words = ("run", "-c", "shops:Shops", "--otlp", url)
    async with natsctl.running(*words) as running:
        await running.logged("primaries listed, syncing")
        await natsctl.done("put", "shops", "bad", "spec: {}")
        sync = await eventually(lambda: synced(collector, "bad"))
        await running.logged(f"trace_id={sync.trace} span_id={sync.id}")
        explained = await natsctl.done("describe", "shops/bad", "-o", "json")
        status = await natsctl.done("status", "-o", "json")
        event = await eventually(lambda: _last_event("bad", jetstream))
        assert await running.ends(signal.SIGTERM) == 0
        log = running.log
    assert sync.error == "ValueError: refused: postgres://***@db and Bearer ***"
    assert sync.events == ["exception"]
    (thinking,) = [span for span in collector.named("thinking") if span.parent == sync.id]
    assert thinking.error == "ValueError: refused: postgres://***@db and Bearer ***"
    for text in (explained, status, event, log):
        assert "postgres://***@db" in text
    config = await natsctl.done("config", "--otlp", url)
    for text in (explained, status, event, log, config):
        assert "hush" not in text
    assert all(b"hush" not in body for body in collector.bodies)
    assert collector.headers[0]["Authorization"].startswith(
        "Basic "
    )  # the collector received the password


async def _last_event(key: str, jetstream: JetStreamContext) -> str:
    try:
        message = await jetstream.get_last_msg("natsctl_events", f"natsctl.events.shops.{key}")
    except NotFoundError:
        return ""
    return (message.data or b"").decode()


async def test_a_silent_collector_does_not_delay_the_stop(
    natsctl: Natsctl,
) -> None:
    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(accept, "127.0.0.1", free_port())
    host, port = silent.sockets[0].getsockname()
    words = ("run", "-c", "shops:Shops", "--otlp", f"http://{host}:{port}")
    async with silent, natsctl.running(*words) as running:
        await running.logged("primaries listed, syncing")
        await eventually(lambda: writers)
        assert await running.ends(signal.SIGTERM) == 0
        assert "cannot send the last spans in time" in running.log
        for writer in writers:
            writer.close()


async def test_without_otlp_no_span_is_recorded(natsctl: Natsctl) -> None:
    async with natsctl.running("run", "-c", "shops:Shops") as running:
        await running.logged("primaries listed, syncing")
        await natsctl.done("put", "shops", "a", "spec: {}")
        await running.logged("syncing  controller=shops key=a")
        assert await running.ends(signal.SIGTERM) == 0
        assert "trace_id" not in running.log


@pytest.mark.usefixtures("natsctl")
async def test_a_missing_otlp_extra_is_reported_with_the_install_command(folder: Path) -> None:
    blocked = folder / "site" / "sitecustomize.py"
    blocked.parent.mkdir()
    blocked.write_text("import sys\nsys.modules['opentelemetry.sdk'] = None\n")
    without_sdk = Natsctl(folder, environ={"PYTHONPATH": str(blocked.parent)}, fresh=True)
    result = await without_sdk("run", "-c", "shops:Shops", "--otlp", "http://127.0.0.1:4318")
    assert result.status == 2
    assert "pip install 'natsctl[otlp]'" in result.err
