"""A migration on a real server, beside a daemon and beside people who edit."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from natsctl import Operator, connect
from natsctl.core.compare_and_set import rewrite
from natsctl.core.migration import Migrated, migrate, objects_of, outdated
from natsctl.model.store import Stored
from tests.support.clients.nats import Nats
from tests.support.controllers.shop_versions import SHOPS, Shops, old
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.stores import documents

KEYS = [f"k{number}" for number in range(500)]
EDITS = 10_000
EDITORS = 20


def edited(current: Stored | None) -> bytes:
    """Return the object with one more edit, as a program writes that knows no type."""
    assert current is not None
    document = documents.parse(current.value)
    return documents.render({**document, "edits": int(str(document["edits"])) + 1})


@pytest.fixture
async def nats(nats_server: NatsServer) -> AsyncIterator[Nats]:
    async with connect(nats_server.url) as nats:
        yield nats


async def test_a_migration_beside_a_daemon_loses_none_of_ten_thousand_edits(nats: Nats) -> None:
    store = await nats.open(SHOPS)
    for key in KEYS:
        await store.create(key, old("nginx", edits=0))
    controller = Shops()
    operator = Operator([controller], nats=nats)
    daemon = asyncio.create_task(operator.run())
    chosen, edits = random.Random(7), dict.fromkeys(KEYS, 0)

    async def edit() -> None:
        for _ in range(EDITS // EDITORS):
            key = chosen.choice(KEYS)
            await rewrite(store, key, edited, seen=await store.get(key))
            edits[key] += 1

    async with asyncio.TaskGroup() as editors:
        for _ in range(EDITORS):
            editors.create_task(edit())
        async with aclosing(migrate(store, outdated(store, await objects_of(store)))) as steps:
            results = {step.result async for step in steps}
    assert sum(edits.values()) == EDITS
    assert results <= {Migrated.DONE, Migrated.UNCHANGED}
    await eventually(operator.synced.is_set)
    stored = {obj.key: documents.parse(obj.value) for obj in await objects_of(store)}
    assert {key: document["edits"] for key, document in stored.items()} == edits
    assert all(document["spec"] == {"images": ["nginx"]} for document in stored.values())
    operator.stop()
    await daemon
