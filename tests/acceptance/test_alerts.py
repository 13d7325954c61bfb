"""A real Prometheus with the shipped rules: they fire on a sick system, and none on a healthy one.

A minute of the rules is a second here; see `hastened`.
"""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientError, ClientSession

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.eventually import eventually
from tests.support.servers.docker import ROOT
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port
from tests.support.servers.process import dying_with_parent

pytestmark = [pytest.mark.promtool, pytest.mark.timeout(900)]

RULES = ROOT / "docs" / "prometheus" / "rules.yml"
HEALTHY = "controllers.greetings:Greetings"
WITHIN_S = 240.0

SICK = """
import asyncio
import os

import msgspec

import natsctl.core.counters
from natsctl import Controller, GarbageLimits, Object, PermanentError, kv, primary, secondary

natsctl.core.counters.OVERDUE_S = 5.0  # a minute is a second here


class Spec(msgspec.Struct, frozen=True):
    text: str


class Item(Object, frozen=True):
    spec: Spec


class Sick(Controller):
    name = "sick"
    items = primary(kv(Item, bucket="items"))

    async def sync_handler(self, key: str) -> None:
        item = self.items.get(key)
        match item and item.spec.text:
            case "fail":
                raise ValueError("on purpose")
            case "fail for good":
                raise PermanentError("on purpose")
            case "kill":
                os._exit(9)


class Busy(Controller):
    name = "busy"
    workers = 1
    jobs = primary(kv(Object, bucket="jobs"))

    async def sync_handler(self, key: str) -> None:
        await asyncio.sleep(3600)


class Littered(Controller):
    name = "littered"
    lots = primary(kv(Object, bucket="lots"))
    bits = secondary(kv(Object, bucket="bits"))
    garbage = GarbageLimits(interval_s=1, grace_s=0, count_max=0)

    async def sync_handler(self, key: str) -> None:
        pass
"""


def hastened(text: str) -> str:
    """Return the rules with a second for each minute, in waits, in ranges and for old failures."""
    seconds = {"s": 1 / 60, "m": 1, "h": 60, "d": 24 * 60}

    def shorter(match: re.Match[str]) -> str:
        length = int(match[2]) * seconds[match[3]]
        return f"{match[1]}{max(1, int(length))}s{match[4]}"

    text = re.sub(r"(for: |\[)(\d+)([smhd])(\]|$)", shorter, text, flags=re.MULTILINE)
    hastened, count = re.subn(r"(oldest_failure_seconds\{[^}]*\}\)) > 900", r"\1 > 15", text)
    assert count == 1
    return hastened


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/api/v1"

    async def get(self, path: str, **parameters: str) -> Any:
        async with (
            ClientSession() as session,
            session.get(f"{self.url}/{path}", params=parameters) as response,
        ):
            return (await response.json())["data"]

    async def alerts(self, state: str = "firing") -> set[tuple[str, str]]:
        """Return the name and the controller of each alert; the controller may be empty."""
        alerts = (await self.get("alerts"))["alerts"]
        return {
            (alert["labels"]["alertname"], alert["labels"].get("controller", ""))
            for alert in alerts
            if alert["state"] == state
        }

    async def fires(self, *alerts: tuple[str, str]) -> None:
        """Wait until these alerts fire."""

        async def fire() -> bool:
            firing = await self.alerts()
            assert firing >= set(alerts), firing
            return True

        await eventually(fire, within_s=WITHIN_S, every_s=0.5)

    async def scraped(self, times: int) -> None:
        """Wait until a target was up in so many scrapes, and no rule is broken."""

        async def was_up() -> bool:
            query = f"max(sum_over_time(up[10m])) >= {times}"
            return bool((await self.get("query", query=query))["result"])

        await eventually(was_up, within_s=WITHIN_S, every_s=0.5)
        groups = (await self.get("rules"))["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}


@asynccontextmanager
async def prometheus(folder: Path, *targets: int) -> AsyncIterator[Prometheus]:
    """Run Prometheus with the shipped rules, which scrapes these ports."""
    port = free_port()
    (folder / "rules.yml").write_text(hastened(RULES.read_text()))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {
                "job_name": "natsctl",
                "static_configs": [{"targets": [f"127.0.0.1:{target}" for target in targets]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        *dying_with_parent(
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ),
        cwd=folder,
    )
    try:
        running = Prometheus(port)

        async def answers() -> bool:
            try:
                return bool(await running.get("status/buildinfo"))
            except ClientError as error:
                raise AssertionError(str(error)) from error

        await eventually(answers)
        yield running
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def start(natsctl: Natsctl) -> AsyncIterator[Callable[..., Awaitable[Running]]]:
    """Start a daemon that serves its metrics on a port."""
    async with AsyncExitStack() as stack:

        async def run(port: int, *controllers: str) -> Running:
            words = [word for controller in controllers for word in ("-c", controller)]
            words += ["--listen", f"127.0.0.1:{port}", "--stop-timeout", "0.1"]
            return await stack.enter_async_context(natsctl.running("run", *words))

        yield run


async def test_the_alerts_fire_on_a_sick_system_and_none_on_a_healthy_one(
    natsctl: Natsctl,
    nats_server: NatsServer,
    start: Callable[..., Awaitable[Running]],
    folder: Path,
    tmp_path: Path,
) -> None:
    (folder / "sick.py").write_text(SICK)
    healthy_port, sick_port = free_port(), free_port()
    healthy = await start(healthy_port, HEALTHY)
    await healthy.logged("primaries listed, syncing")
    await natsctl("put", "greetings", "shop", '{"spec": {"text": "hi"}}')
    async with prometheus(tmp_path, healthy_port) as watched:
        await watched.scraped(30)
        assert await watched.alerts() == set()

    sick = await start(sick_port, "sick:Sick")
    await sick.logged("primaries listed, syncing")
    for key, text in (("a", "fail"), ("b", "fail for good"), ("c", "fine"), ("d", "kill")):
        await natsctl("put", "items", key, f'{{"spec": {{"text": "{text}"}}}}')
    await natsctl("put", "items", "e", '{"spec": {"text": 3}}', "--validate", "ignore")
    assert await sick.ends() == 9
    for _ in range(10):
        sick = await start(sick_port, "sick:Sick")
        if await eventually(partial(after_start, sick), within_s=WITHIN_S) == "quarantined":
            break

    other_port = free_port()
    other = await start(other_port, "sick:Busy", "sick:Littered")
    for _ in range(2):
        await other.logged("primaries listed, syncing")
    marks = {"natsctl.io/owner-kind": "Object.lots", "natsctl.io/owner-key": "nobody"}
    orphan = json.dumps({"metadata": {"labels": marks, "annotations": marks}, "spec": {}})
    await natsctl("put", "bits", "stray", orphan)
    for key in ("first", "second"):
        await natsctl("put", "jobs", key, '{"spec": {}}')

    async with prometheus(tmp_path, healthy_port, sick_port, other_port) as watched:
        await watched.fires(
            ("NatsctlKeysFail", "sick"),
            ("NatsctlKeysQuarantined", "sick"),
            ("NatsctlInvalidObjects", "sick"),
            ("NatsctlChangeWaits", "busy"),
            ("NatsctlCollectionRefused", "littered"),
        )
        unwell = {controller for _, controller in await watched.alerts()} - {""}
        assert unwell == {"sick", "busy", "littered"}
        await sick.ends(signal.SIGKILL)
        await watched.fires(("NatsctlControllerDown", "sick"))
        assert "greetings" not in {controller for _, controller in await watched.alerts()}
        nats_server.kill()
        await watched.fires(("NatsctlDisconnected", ""))
        for daemon in (healthy, other):
            await daemon.ends(signal.SIGKILL)
        await watched.fires(("NatsctlGone", ""), ("NatsctlControllerDown", "greetings"))


def after_start(daemon: Running) -> str:
    """Return whether the daemon died or quarantined a key; empty as long as neither happened."""
    if daemon.process.returncode is not None:
        return "died"
    quarantines = "a key is quarantined" in daemon.log and "primaries listed" in daemon.log
    return "quarantined" if quarantines else ""
