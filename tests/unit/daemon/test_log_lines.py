"""Log lines of a handler have the controller, the key, the operation and the attempt."""

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from natsctl import Controller, Operator, primary
from natsctl.daemon.logs import log_to_stderr
from natsctl.daemon.settings.settings import LogSettings
from natsctl.telemetry.logger import log_context
from natsctl.testing import MemoryStores
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
    """Run the controller until its handler has logged `lines` lines, and return all lines."""
    log_to_stderr(LogSettings(format="json"))
    operator = Operator([Shops()], nats=stores)
    output: list[str] = []

    def done() -> bool:
        output.extend(capsys.readouterr().err.splitlines())
        return sum('"looking"' in line for line in output) >= lines

    running = asyncio.create_task(operator.run())
    try:
        await eventually(done, within_s=60)
    finally:
        operator.stop()
        await running
    assert "hush" not in "".join(output)
    return [json.loads(line) for line in output]


def sync_fields(records: Sequence[dict[str, Any]], message: str) -> list[tuple[object, ...]]:
    names = ("controller", "key", "operation", "attempt")
    return [
        tuple(record.get(name) for name in names)
        for record in records
        if record["message"].startswith(message)
    ]


async def test_lines_of_a_handler_have_the_fields_of_their_sync(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stores = MemoryStores()
    await stores.store(THINGS).create("broken", value())
    records = await logged(capsys, stores, 2)
    assert sync_fields(records, "looking") == [
        ("shops", "broken", "put", 1),
        ("shops", "broken", "retry", 2),
    ]
    assert sync_fields(records, "sync failed") == [("shops", "broken", "put", 1)]


async def test_a_line_without_a_key_has_its_controller(capsys: pytest.CaptureFixture[str]) -> None:
    stores = MemoryStores()
    await stores.store(THINGS).create("a", value())
    records = await logged(capsys, stores, 1)
    assert sync_fields(records, "primaries listed") == [("shops", None, None, None)]
