"""`natsctl run` with a real server converges and leaves no consumer behind."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.cli.process_tree import alive, descendants, name
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

GREETINGS = "controllers.greetings:Greetings"
BUCKETS = ("greetings", "routes", "defaults")

Daemon = Callable[..., Awaitable[Running]]


COUNTED = """
import logging
from natsctl import Controller, Object, kv, primary

class Jobs(Controller):
    jobs = primary(kv(Object, bucket="counted"))

    async def sync_handler(self, key):
        logging.getLogger(__name__).debug("looked at %s", key)
        print("visited", key, flush=True)
"""


async def payload(routes: KeyValue, key: str) -> str | None:
    """Return the payload of a route, or None if the route does not exist."""
    try:
        entry = await routes.get(key)
    except KeyNotFoundError:
        return None
    return str(json.loads(entry.value or b"")["spec"]["payload"])


async def consumers(jetstream: JetStreamContext) -> list[str]:
    return [
        info.name for bucket in BUCKETS for info in await jetstream.consumers_info(f"KV_{bucket}")
    ]


def greeting(text: str) -> bytes:
    return json.dumps({"spec": {"text": text}}).encode()


async def test_secondaries_follow_primaries_from_any_client(
    natsctl: Natsctl, daemon: Daemon, jetstream: JetStreamContext
) -> None:
    running = await daemon(GREETINGS)
    greetings, routes = [await jetstream.key_value(name) for name in ("greetings", "routes")]
    await natsctl.done("put", "greetings", "shop", "spec: {text: hi}")
    await greetings.put("market", greeting("ho"))

    async def has_payload(key: str, text: str | None) -> None:
        await eventually(lambda: _equals(routes, key, text))

    await has_payload("shop", "hi!")
    await has_payload("market", "ho!")
    await greetings.put("market", greeting("hey"))
    await has_payload("market", "hey!")
    await routes.delete("shop")
    await has_payload("shop", "hi!")
    edited = json.loads((await routes.get("shop")).value or b"")
    edited["spec"]["payload"] = "edited by hand"
    await routes.put("shop", json.dumps(edited).encode())
    await has_payload("shop", "hi!")
    await natsctl.done("put", "defaults", "all", "spec: {punctuation: '?'}")
    await natsctl.done("put", "greetings", "shop", "spec: {text: hi, replicas: 2}")
    await has_payload("shop", "hi?hi?")
    await greetings.delete("market")
    await has_payload("market", None)
    await natsctl.done("delete", "greetings", "shop", "--wait")
    await has_payload("shop", None)

    assert await consumers(jetstream)
    assert await running.ends(signal.SIGTERM) == 0
    assert await consumers(jetstream) == []


async def _equals(routes: KeyValue, key: str, text: str | None) -> bool:
    assert await payload(routes, key) == text
    return True


async def test_a_daemon_converges_after_it_was_killed_and_restarted(
    natsctl: Natsctl, daemon: Daemon, jetstream: JetStreamContext
) -> None:
    first = await daemon(GREETINGS)
    greetings, routes = [await jetstream.key_value(name) for name in ("greetings", "routes")]
    for number in range(300):
        await greetings.put(f"g{number}", greeting(f"hi{number}"))
    await eventually(lambda: _equals(routes, "g3", "hi3!"))
    assert await first.ends(signal.SIGKILL) == -signal.SIGKILL
    await greetings.put("g1", greeting("changed meanwhile"))
    await greetings.delete("g2")
    await routes.delete("g3")
    second = await daemon(GREETINGS)
    await eventually(lambda: _equals(routes, "g1", "changed meanwhile!"))
    await eventually(lambda: _equals(routes, "g2", None))
    expected = {f"g{n}": f"hi{n}!" for n in range(300) if n != 2} | {"g1": "changed meanwhile!"}

    async def converged() -> bool:
        listed_routes = json.loads(await natsctl.done("get", "routes", "-o", "json"))
        assert {item["key"]: item["spec"]["payload"] for item in listed_routes} == expected
        return True

    await eventually(converged)
    assert await second.ends(signal.SIGINT) == 0

    async def no_consumer_is_left() -> bool:
        return await consumers(jetstream) == []

    await eventually(no_consumer_is_left)  # the server deletes consumers without subscribers


async def test_an_embedded_server_ends_with_a_killed_daemon_and_keeps_its_data(
    folder: Path,
) -> None:
    port = free_port()
    natsctl = Natsctl(folder, f"nats://127.0.0.1:{port}")
    words = ("run", "--embedded", "--port", str(port), "--store-dir", "data", "-c", GREETINGS)
    async with Natsctl(folder).running(*words) as running:
        await running.logged("primaries listed, syncing")
        await natsctl.done("put", "greetings", "shop", "spec: {text: hi}")
        started = descendants(running.process.pid)
        await running.ends(signal.SIGKILL)
        await eventually(lambda: not any(map(alive, started)))
    async with Natsctl(folder).running(*words) as running:
        await running.logged("primaries=1")
        assert (await natsctl("get", "greetings")).rows[0][0] == "shop"
        assert await running.ends(signal.SIGTERM) == 0


async def test_the_daemon_ends_if_its_embedded_server_dies(folder: Path) -> None:
    natsctl = Natsctl(folder)
    async with natsctl.running("run", "--embedded", "--port", "0", "-c", GREETINGS) as running:
        await running.logged("primaries listed, syncing")
        for pid in descendants(running.process.pid):
            if name(pid) == "nats-server":
                os.kill(pid, signal.SIGKILL)
        assert await running.ends() == 1
        assert "natsctl: error: the private nats-server ended by itself" in running.log


async def test_a_daemon_waits_for_a_server_that_starts_later(
    natsctl: Natsctl, nats_server: NatsServer
) -> None:
    await nats_server.stop()
    async with natsctl.running("run", "-c", GREETINGS) as running:
        await running.logged("no connection to NATS yet")
        await nats_server.start()
        await running.logged("primaries listed, syncing")
        assert await running.ends(signal.SIGTERM) == 0
    await nats_server.stop()
    async with natsctl.running("run", "-c", GREETINGS) as running:
        await running.logged("no connection to NATS yet")
        assert await running.ends(signal.SIGTERM) == 0


async def test_resync_syncs_every_primary_at_that_interval(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    (folder / "counted.py").write_text(COUNTED)
    running = await daemon("counted:Jobs", options=("--resync", "0.5"))
    await natsctl.done("put", "counted", "shop", "spec: {}")
    await running.logged("visited shop", times=4)
    explained = (await natsctl("describe", "counted/shop", "-o", "json")).json
    assert "resync" in {sync["operation"] for sync in explained[0]["syncs"]}


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("info", {"connected to"}),
        ("warning,counted=debug", {"looked at shop"}),
        ("debug,natsctl.jetstream=error", {"looked at shop"}),
        ("critical", set()),
    ],
)
async def test_the_log_level_filters_log_lines_per_logger(
    natsctl: Natsctl, folder: Path, level: str, expected: set[str]
) -> None:
    (folder / "counted.py").write_text(COUNTED)
    await natsctl.done("put", "counted", "shop", "spec: {}", "--create-bucket")
    async with natsctl.running("run", "-c", "counted:Jobs", "--log-level", level) as running:
        await running.logged("visited shop")
        assert await running.ends(signal.SIGTERM) == 0
    assert {text for text in ("connected to", "looked at shop") if text in running.log} == expected


async def test_primaries_beyond_all_limits_converge_and_then_cause_no_write(
    natsctl: Natsctl, daemon: Daemon, jetstream: JetStreamContext
) -> None:
    bucket = await jetstream.create_key_value(KeyValueConfig(bucket="greetings", history=5))
    count = 10_200  # a daemon remembers the last syncs, failures and events of 10,000 objects
    for first in range(0, count, 300):
        await asyncio.gather(
            *(bucket.put(f"g{number}", greeting("hi")) for number in range(first, first + 300))
        )
    running = await daemon(GREETINGS, options=("--workers", "16"))

    async def written() -> tuple[int, int]:
        infos = [await jetstream.stream_info(f"KV_{name}") for name in ("greetings", "routes")]
        return infos[0].state.last_seq, infos[1].state.last_seq

    await eventually(lambda: _at_least(written, (2 * count, count)), within_s=240, every_s=0.2)
    await asyncio.sleep(2)
    assert await written() == (2 * count, count)
    listed = (await natsctl.done("get", "routes", "-o", "name")).split()
    assert len(listed) == count
    assert await running.ends(signal.SIGTERM) == 0


async def _at_least(
    written: Callable[[], Awaitable[tuple[int, int]]], wanted: tuple[int, int]
) -> bool:
    return all(count >= least for count, least in zip(await written(), wanted, strict=True))
