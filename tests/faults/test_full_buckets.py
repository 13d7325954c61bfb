"""A bucket that is full and evicts its oldest keys fails the syncs, and is not written for ever."""

import pytest

from tests.support.clients.nats_admin import Admin
from tests.support.controllers.copy_controller import COPIES, THINGS, Copies
from tests.support.eventually import eventually
from tests.support.faults.invariants import Checker
from tests.support.faults.nats_test_bed import running
from tests.support.servers.nats_server import NatsServer

pytestmark = pytest.mark.usefixtures("patient")

ROOM, COUNT = 8, 20


async def test_a_controller_stops_writing_into_a_full_bucket_that_evicts_its_oldest_keys(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    controller = Copies()
    async with Admin(nats_server.url) as admin:
        await admin.create(COPIES, discard="old", max_msgs=ROOM, max_msgs_per_subject=64)
        async with running(controller, nats_server.url, verify_s=0.6):
            runtime = controller.runtime
            for number in range(COUNT):
                await admin.put(THINGS, f"k{number}", {"spec": {"text": "hi"}})

            def fails() -> bool:
                failing = runtime.status().failing
                return bool(failing) and all(
                    "deletes its oldest" in text for text in failing.values()
                )

            await eventually(fails)
            assert "bucket is full and deletes its oldest keys" in caplog.text
            seen = (await admin.info(COPIES))["state"]["last_seq"]
            failures = sum(runtime.explain(key).failures for key in runtime.status().failing)

            def retried() -> bool:
                keys = runtime.status().failing
                return sum(runtime.explain(key).failures for key in keys) > failures + 2 * COUNT

            await eventually(retried)
            assert (await admin.info(COPIES))["state"]["last_seq"] - seen <= ROOM

            config = (await admin.info(COPIES))["config"]
            await admin.api(f"STREAM.UPDATE.KV_{COPIES}", {**config, "max_msgs": -1})
            await eventually(lambda: not runtime.status().failing)
            await Checker(admin, controller).settled()
