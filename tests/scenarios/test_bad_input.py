"""An invalid object is reported and skipped, and does not affect other objects."""

import asyncio
import json
import logging
from typing import Any

import pytest

from natsctl import InvalidObjectError, Object, kv, primary, secondary
from natsctl.testing import Harness, running
from tests.support.controllers.app_controller import (
    App,
    AppClient,
    Apps,
    Part,
    PartSpec,
    app_client,
)
from tests.support.stores.documents import put

JUNK = [
    pytest.param(b"oops", id="no JSON"),
    pytest.param(b"", id="empty"),
    pytest.param(b"\xff\xfe", id="no text"),
    pytest.param(b'"text"', id="no object"),
    pytest.param(b"{}", id="no spec"),
    pytest.param({"spec": {"text": 7}}, id="a wrong type"),
    pytest.param({"spec": {"text": "hi"}, "metadata": {"labels": [1]}}, id="wrong metadata"),
    pytest.param(
        {"spec": {"text": "hi"}, "metadata": {"finalizers": [[]], "deletionTimestamp": "now"}},
        id="wrong finalizers",
    ),
    pytest.param(b'{"spec": ' + b"[" * 100_000, id="too deep for the parser"),
    pytest.param(b'{"more": ' + b"[" * 9_999 + b"]" * 9_999 + b"}", id="deep unknown field"),
]


async def converged(harness: Harness) -> AppClient:
    client = app_client(harness)
    await client.app("shop", "good")
    await client.app("bar", "good")
    await harness.run_until_idle()
    return client


@pytest.mark.parametrize("value", JUNK)
async def test_an_invalid_object_is_reported_and_affects_no_other_and_its_last_state_is_kept(
    value: bytes | dict[str, Any],
) -> None:
    controller = Apps()
    async with running(controller) as harness:
        client = await converged(harness)
        revision = (await put(client.apps, "shop", value)).revision
        await client.app("bar", "better")
        await client.app("new", "new")
        await harness.run_until_idle()

        texts = {"shop.main": "good", "bar.main": "better", "new.main": "new"}
        assert await client.texts() == texts
        shop = controller.apps.get("shop")
        assert shop is not None
        assert shop.spec.text == "good"
        assert isinstance(controller.apps.error("shop"), InvalidObjectError)
        assert list(harness.runtime.status().invalid) == ["shop"]
        explanation = harness.runtime.explain("shop")
        assert (explanation.exists, explanation.invalid != "") == (True, True)
        assert harness.runtime.tree("shop").ready == "Invalid"
        reason, message = client.events("shop")[-1]
        assert reason == "InvalidObject"
        assert f"revision {revision} is invalid and skipped" in message


async def test_a_resync_or_a_secondary_does_not_sync_an_invalid_object() -> None:
    controller = Apps()
    async with running(controller) as harness:
        client = await converged(harness)
        await put(client.apps, "shop", b"oops")
        await harness.run_until_idle()
        controller.syncs.clear()
        await client.parts.delete("shop.main")
        harness.runtime.resync()
        await asyncio.sleep(3600)

        assert set(controller.syncs) == {"bar"}


async def test_an_invalid_object_is_logged_once_per_revision(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Apps()) as harness:
        client = await converged(harness)
        await put(client.apps, "shop", b"oops")
        await harness.run_until_idle()
        for _ in range(3):
            client.apps.break_watches()
            await asyncio.sleep(10)
        await put(client.apps, "shop", b"oops again")
        await harness.run_until_idle()

    records = [
        record
        for record in caplog.records
        if "shop" in record.message and record.levelno == logging.ERROR
    ]
    assert len(records) == 2
    assert client.reasons("shop").count("InvalidObject") == 2


async def test_the_secondaries_of_an_invalid_object_are_kept_until_it_is_deleted() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness)
        await put(client.apps, "shop", b"oops")
        await asyncio.sleep(3600)
    async with running(Apps(), stores=client.stores) as harness:
        await asyncio.sleep(3600)

        assert client.parts.keys() == ["bar.main", "shop.main"]
        assert (await harness.runtime.garbage_plan()).orphans == ()
        await client.apps.delete("shop")
        await harness.run_until_idle()

        assert client.parts.keys() == ["bar.main"]
        assert harness.runtime.status().invalid == {}


async def test_an_object_without_a_valid_state_is_not_synced_until_it_has_one() -> None:
    controller = Apps()
    async with running(controller) as harness:
        client = await converged(harness)
        await put(client.apps, "shop", b"oops")
        await harness.run_until_idle()
    controller = Apps()
    async with running(controller, stores=client.stores) as harness:
        await harness.run_until_idle()
        assert controller.apps.get("shop") is None
        assert controller.syncs == ["bar"]
        await client.app("shop", "better")
        await harness.run_until_idle()

        assert await client.texts() == {"shop.main": "better", "bar.main": "good"}


async def test_an_error_of_a_type_makes_only_that_object_invalid() -> None:
    class Touchy(Object, frozen=True):
        spec: dict[str, str]

        def __post_init__(self) -> None:
            self.spec["text"]

    class Touchies(Apps):
        apps = primary(kv(Touchy, bucket="apps"))  # type: ignore[assignment]

        async def sync_handler(self, key: str) -> float | None:
            self.syncs.append(key)
            return None

    controller = Touchies()
    async with running(controller) as harness:
        client = app_client(harness)
        await put(client.apps, "bad", {"spec": {}})
        await put(client.apps, "good", {"spec": {"text": "hi"}})
        await harness.run_until_idle()

        assert controller.syncs == ["good"]
        assert list(harness.runtime.status().invalid) == ["bad"]


async def test_an_error_of_an_index_makes_only_that_object_invalid() -> None:
    class Indexed(Apps):
        apps = primary(kv(App, bucket="apps"), indexes={"first": lambda app: app.spec.parts[0]})
        parts = secondary(
            kv(Part, bucket="parts"), indexes={"first": lambda part: [part.spec.text[0]]}
        )

    controller = Indexed()
    async with running(controller) as harness:
        client = app_client(harness)
        await client.app("shop", parts=())
        await client.app("bar", parts=("x",))
        await harness.run_until_idle()

        assert controller.syncs == ["bar"]
        assert "first" in harness.runtime.status().invalid["shop"]
        assert set(controller.apps.by_index("first", "x")) == {"bar"}


async def test_a_sync_that_writes_an_illegal_key_is_not_retried() -> None:
    class Careless(Apps):
        async def sync_handler(self, key: str) -> float | None:
            self.syncs.append(key)
            if self.apps.get(key) is not None:
                await self.parts.apply(f"{key}..main", Part(spec=PartSpec("hi")))
            return None

    controller = Careless()
    async with running(controller) as harness:
        await app_client(harness).app("shop")
        await harness.run_until_idle()

        assert controller.syncs == ["shop"]
        assert "InvalidKeyError" in harness.runtime.status().failing["shop"]


@pytest.mark.parametrize("owner", ["x" * 130_000 + "\x0b", "a\x0bb", "*"])
async def test_an_owner_label_that_is_not_a_legal_key_is_not_synced(owner: str) -> None:
    controller = Apps()
    async with running(controller) as harness:
        client = await converged(harness)
        part = json.loads((await client.parts.get("shop.main")).value)
        part["metadata"]["annotations"]["natsctl.io/owner-key"] = owner
        await put(client.parts, "strange", part)
        await harness.run_until_idle()
        assert not harness.runtime.explain(owner).syncs


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ({"text": "hi"}, "declare a plain Struct: the values have no `spec`"),
        (b"\x81\xa4text\xa2hi", "declare `bytes`, or give a decoder"),
        ({"spec": {"text": 7}}, ""),
    ],
)
async def test_ten_invalid_objects_are_logged_and_the_others_counted_each_minute(
    caplog: pytest.LogCaptureFixture, value: bytes | dict[str, Any], cause: str
) -> None:
    async with running(Apps()) as harness:
        client = app_client(harness)
        with caplog.at_level(logging.ERROR):
            for number in range(100):
                await put(client.apps, f"k{number}", value)
            await asyncio.sleep(600)
            await put(client.apps, "late", value)
            await asyncio.sleep(1)
    lines = [message for message in caplog.messages if "invalid" in message]
    assert [" revision=" in line for line in lines] == [True] * 10 + [False, True]
    assert "skipped more invalid objects kind=App.apps objects=90" in lines[10]
    assert "key=late" in lines[11]
    assert (cause in lines[0], "declare" in lines[0]) == (True, bool(cause))
    assert not any("declare" in line for line in lines[1:10])
