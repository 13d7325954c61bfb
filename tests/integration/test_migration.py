"""A migration on a real server, beside a daemon and beside people who edit."""

import asyncio
import random
import re
from contextlib import suppress
from pathlib import Path

from natsctl import Operator
from natsctl.errors import ConflictError
from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.nats import Nats
from tests.support.controllers.shop_versions import SHOPS, Shops, old
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.stores import documents

KEYS = [f"k{number}" for number in range(100)]
EDITORS = 4
CONTROLLER = "tests.support.controllers.shop_versions:Shops"


def edited(value: bytes) -> bytes:
    """Return the object with one more edit, as a program writes that knows no type."""
    document = documents.parse(value)
    return documents.render({**document, "edits": int(str(document["edits"])) + 1})


async def test_a_migration_beside_a_daemon_loses_no_edit(
    nats: Nats, nats_server: NatsServer, tmp_path: Path
) -> None:
    store = await nats.open(SHOPS)
    for key in KEYS:
        await store.create(key, old("nginx", edits=0))
    natsctl = Natsctl(tmp_path, nats_server.url)
    controller = Shops()
    operator = Operator([controller], nats=nats)
    daemon = asyncio.create_task(operator.run())
    chosen, edits = random.Random(7), dict.fromkeys(KEYS, 0)

    async def edit() -> None:
        made = 0
        while made < 50 or not migrating.done():
            made += 1
            key = chosen.choice(KEYS)
            while True:
                seen = await store.get(key)
                with suppress(ConflictError):
                    await store.update(key, edited(seen.value), revision=seen.revision)
                    break
            edits[key] += 1

    async with asyncio.TaskGroup() as tasks:
        migrating = tasks.create_task(natsctl("migrate", "--controller", CONTROLLER))
        for _ in range(EDITORS):
            tasks.create_task(edit())
    migrated = migrating.result()
    assert sum(edits.values()) >= 50 * EDITORS
    assert migrated.status == 0
    assert re.search(r"^shops: .*migrated to version 2", migrated.out, re.MULTILINE)
    await eventually(operator.synced.is_set)
    stored = {key: documents.parse((await store.get(key)).value) for key in KEYS}
    assert {key: document["edits"] for key, document in stored.items()} == edits
    assert all(document["spec"] == {"images": ["nginx"]} for document in stored.values())
    operator.stop()
    await daemon
