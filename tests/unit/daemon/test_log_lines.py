"""What controllers log says by itself which controller, key, operation and attempt it is about."""

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from natsctl import Controller, primary
from natsctl.daemon.observe.logs import log_to_stderr
from natsctl.daemon.operator import Operator
from natsctl.daemon.settings.settings import LogSettings
from natsctl.telemetry.logger import log_context
from natsctl.testing.memory import MemoryStores
from tests.support.eventually import eventually
from tests.support.stores.sample_objects import THINGS, value

log = logging.getLogger("mine")


class Shops(Controller):
    things = primary(THINGS)

    async def sync_handler(self, key: str) -> float | None:
        log.info("looking")
        if key == "broken" and log_context()["attempt"] == 1:
            raise ValueError("with nats://ann:hush@hub")
        return None


async def logged(
    capsys: pytest.CaptureFixture[str], stores: MemoryStores, lines: int
) -> list[dict[str, Any]]:
    """Return what a controller logs, up to so many lines of its own."""
    log_to_stderr(LogSettings(format="json"))
    operator = Operator([Shops()], nats=stores)
    told: list[str] = []

    def done() -> bool:
        told.extend(capsys.readouterr().err.splitlines())
        return sum('"looking"' in line for line in told) >= lines

    running = asyncio.create_task(operator.run())
    try:
        await eventually(done, within_s=60)
    finally:
        operator.stop()
        await running
    assert "hush" not in "".join(told)
    return [json.loads(line) for line in told]


def of(facts: Sequence[dict[str, Any]], message: str) -> list[tuple[object, ...]]:
    names = ("controller", "key", "operation", "attempt")
    return [
        tuple(fact.get(name) for name in names)
        for fact in facts
        if fact["message"].startswith(message)
    ]


async def test_a_handler_s_lines_say_which_sync_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    stores = MemoryStores()
    await stores.store(THINGS).create("broken", value())
    facts = await logged(capsys, stores, 2)
    assert of(facts, "looking") == [
        ("shops", "broken", "put", 1),
        ("shops", "broken", "retry", 2),
    ]
    assert of(facts, "sync failed") == [("shops", "broken", "put", 1)]


async def test_what_is_about_no_key_says_its_controller(capsys: pytest.CaptureFixture[str]) -> None:
    stores = MemoryStores()
    await stores.store(THINGS).create("a", value())
    facts = await logged(capsys, stores, 1)
    assert of(facts, "primaries listed") == [("shops", None, None, None)]
