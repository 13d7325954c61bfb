"""Contract tests of the JetStream API: the API in memory answers as a nats-server does."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import natsctl
from natsctl import JetStream, Kind, NotFoundError, StoreError, StoreMissingError, Stores
from natsctl.errors import NotLeadingError
from natsctl.model.store import WriteGuard
from natsctl.testing import MemoryJetStream, MemoryStores
from tests.support.plugins.server_location import new_nats_server

ORDERS: dict[str, Any] = {"name": "orders", "subjects": ["orders.>"]}
BILLING: dict[str, Any] = {"name": "billing", "durable_name": "billing"}


@pytest.fixture(params=["memory", "nats"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        yield MemoryStores()
        return
    async with new_nats_server(tmp_path) as server, natsctl.connect(server.url) as nats:
        yield nats


@pytest.fixture
def jetstream(stores: Stores) -> JetStream:
    assert isinstance(stores, JetStream)
    return stores


def consumer(config: dict[str, Any], action: str = "create") -> dict[str, Any]:
    return {"stream_name": "orders", "config": config, "action": action}


def without_metadata(config: dict[str, Any]) -> dict[str, Any]:
    unset = ("metadata", "consumer_limits", "allow_msg_ttl")
    return {name: value for name, value in config.items() if name not in unset}


async def test_a_created_stream_has_the_defaults_of_a_server(jetstream: JetStream) -> None:
    created = await jetstream.api("STREAM.CREATE.orders", ORDERS)
    read = await jetstream.api("STREAM.INFO.orders")
    expected = await MemoryJetStream().api("STREAM.CREATE.orders", ORDERS)
    assert without_metadata(created["config"]) == expected["config"]
    assert read["config"].keys() == created["config"].keys()
    assert read["state"]["messages"] == read["state"]["consumer_count"] == 0


async def test_creating_the_same_stream_twice_changes_nothing(jetstream: JetStream) -> None:
    first = await jetstream.api("STREAM.CREATE.orders", {"name": "orders"})
    assert first["config"]["subjects"] == ["orders"]  # its name, by default
    second = await jetstream.api("STREAM.CREATE.orders", {"name": "orders"})
    assert (first["config"], first["created"]) == (second["config"], second["created"])


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("STREAM.CREATE.orders", {**ORDERS, "max_msgs": 5}, "different configuration.*10058"),
    ("STREAM.CREATE.sales", {"name": "sales", "subjects": ["orders.new"]}, "overlap.*10065"),
    ("STREAM.CREATE.sales", {"name": "sales", "subjects": ["orders.*"]}, "overlap.*10065"),
    ("STREAM.CREATE.sales", {"name": "other"}, "name in subject does not match.*10056"),
    ("STREAM.UPDATE.orders", {**ORDERS, "storage": "memory"}, "change storage type.*10052"),
    ("STREAM.UPDATE.orders", {**ORDERS, "retention": "workqueue"}, "retention policy.*10052"),
    ("CONSUMER.CREATE.orders.billing", consumer({**BILLING, "max_deliver": 3}), "10148"),
    (
        "CONSUMER.CREATE.orders.billing",
        consumer({**BILLING, "deliver_policy": "new"}, "update"),
        "deliver policy can not be updated.*10012",
    ),
    ("CONSUMER.CREATE.orders.other", consumer({"name": "other"}, "update"), "10149"),
]
ABSENT: dict[str, type[StoreError]] = {
    "STREAM.INFO.absent": StoreMissingError,
    "STREAM.UPDATE.absent": StoreMissingError,
    "STREAM.DELETE.absent": StoreMissingError,
    "CONSUMER.INFO.absent.billing": StoreMissingError,
    "CONSUMER.INFO.orders.absent": NotFoundError,
    "CONSUMER.DELETE.orders.absent": NotFoundError,
}


async def test_an_invalid_request_is_refused(jetstream: JetStream) -> None:
    await jetstream.api("STREAM.CREATE.orders", ORDERS)
    await jetstream.api("CONSUMER.CREATE.orders.billing", consumer(BILLING))
    for endpoint, body, error in INVALID:
        with pytest.raises(StoreError, match=error):
            await jetstream.api(endpoint, body)
    for endpoint, missing in ABSENT.items():
        with pytest.raises(missing, match="not found"):
            await jetstream.api(endpoint, {"name": "absent"} if "UPDATE" in endpoint else None)


async def test_an_update_sets_the_given_fields_and_resets_the_others(jetstream: JetStream) -> None:
    await jetstream.api("STREAM.CREATE.orders", {**ORDERS, "max_age": 10**9})
    await jetstream.api("STREAM.UPDATE.orders", {**ORDERS, "max_msgs": 5})
    config = (await jetstream.api("STREAM.INFO.orders"))["config"]
    assert (config["max_msgs"], config["max_age"]) == (5, 0)


async def test_a_consumer_is_created_updated_listed_and_deleted(jetstream: JetStream) -> None:
    await jetstream.api("STREAM.CREATE.orders", ORDERS)
    created = await jetstream.api("CONSUMER.CREATE.orders.billing", consumer(BILLING))
    assert (created["stream_name"], created["name"]) == ("orders", "billing")
    wanted = consumer({**BILLING, "max_deliver": 3}, "update")
    await jetstream.api("CONSUMER.CREATE.orders.billing", wanted)
    read = await jetstream.api("CONSUMER.INFO.orders.billing")
    expected = {**created["config"], "max_deliver": 3}
    assert without_metadata(read["config"]) == without_metadata(expected)
    assert (await jetstream.api("CONSUMER.NAMES.orders"))["consumers"] == ["billing"]
    listed = await jetstream.api("CONSUMER.LIST.orders")
    assert [info["name"] for info in listed["consumers"]] == ["billing"]
    assert (await jetstream.api("CONSUMER.DELETE.orders.billing"))["success"]
    assert (await jetstream.api("CONSUMER.NAMES.orders"))["consumers"] in ([], None)


async def test_a_deleted_stream_is_gone_with_its_consumers(jetstream: JetStream) -> None:
    await jetstream.api("STREAM.CREATE.orders", ORDERS)
    await jetstream.api("CONSUMER.CREATE.orders.billing", consumer(BILLING))
    assert (await jetstream.api("STREAM.NAMES"))["streams"] == ["orders"]
    assert (await jetstream.api("INFO"))["consumers"] == 1
    assert (await jetstream.api("STREAM.DELETE.orders"))["success"]
    assert (await jetstream.api("STREAM.NAMES"))["streams"] in ([], None)
    await jetstream.api("STREAM.CREATE.orders", ORDERS)
    with pytest.raises(NotFoundError):
        await jetstream.api("CONSUMER.INFO.orders.billing")


async def test_the_write_guard_forbids_changes_and_no_reads(stores: Stores) -> None:
    class Closed(WriteGuard):
        def check(self, kind: Kind[Any] | None) -> None:
            raise NotLeadingError(f"no write of {kind}")

    assert isinstance(stores, JetStream)
    await stores.api("STREAM.CREATE.orders", ORDERS)
    guarded = stores.guarded(Closed())
    assert isinstance(guarded, JetStream)
    for endpoint in ("INFO", "STREAM.INFO.orders", "STREAM.NAMES", "CONSUMER.LIST.orders"):
        await guarded.api(endpoint)
    for endpoint in ("STREAM.DELETE.orders", "STREAM.UPDATE.orders", "CONSUMER.CREATE.orders.x"):
        with pytest.raises(NotLeadingError, match="no write of None"):
            await guarded.api(endpoint, ORDERS)
    assert (await stores.api("STREAM.NAMES"))["streams"] == ["orders"]
