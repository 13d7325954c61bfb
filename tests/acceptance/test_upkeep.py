"""`natsctl resync` and `natsctl gc` with `--local` work without a daemon."""

import json
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue

from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.bucket_keys import keys

SHOP = """
from natsctl import Controller, Object, PermanentError, kv, primary, secondary

class App(Object, frozen=True):
    spec: dict[str, str] = {}

class Part(Object, frozen=True):
    spec: dict[str, str] = {}

class Apps(Controller):
    apps = primary(kv(App, bucket="apps"))
    parts = secondary(kv(Part, bucket="parts"))

    async def sync_handler(self, key):
        app = self.apps.get(key)
        if app is None:
            return
        if app.spec.get("size") == "wrong":
            raise ValueError("no such size")
        await self.parts.apply(key, Part(spec=app.spec))
        await self.apps.update_status(key, {"ready": True})
"""
APPS = ("--local", "--controller", "shop:Apps")


@pytest.fixture
async def apps(jetstream: JetStreamContext, folder: Path) -> KeyValue:
    (folder / "shop.py").write_text(SHOP)
    return await jetstream.create_key_value(KeyValueConfig(bucket="apps", history=5))


@pytest.fixture
async def parts(jetstream: JetStreamContext) -> KeyValue:
    return await jetstream.create_key_value(KeyValueConfig(bucket="parts", history=5))


async def orphan(parts: KeyValue, key: str, *, owner: str) -> None:
    """Put a part whose owner labels name an app."""
    labels = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": owner}
    await parts.put(key, json.dumps({"metadata": {"labels": labels}, "spec": {}}).encode())


async def test_commands_ask_for_confirmation_on_a_terminal(
    natsctl: Natsctl, apps: KeyValue, parts: KeyValue
) -> None:
    await apps.put("a", b'{"spec": {}}')
    await orphan(parts, "lost", owner="nobody")
    assert await natsctl.typed("n", "gc", "apply", *APPS) == 1
    assert await keys(parts) == ["lost"]
    assert await natsctl.typed("y", "gc", "apply", *APPS) == 0
    assert await natsctl.typed("y", "delete", "apps", "--all") == 0
    assert (await natsctl("get", "parts", "-o", "json")).json == []
    assert (await natsctl("get", "apps", "-o", "json")).json == []


async def test_gc_apply_needs_force_if_the_primary_bucket_is_empty_or_recreated(
    natsctl: Natsctl, apps: KeyValue, parts: KeyValue, jetstream: JetStreamContext
) -> None:
    await apps.put("a", b'{"spec": {}}')
    await natsctl.done("resync", *APPS)
    await natsctl.done("gc", "plan", *APPS)
    await jetstream.purge_stream("KV_apps")
    empty = await natsctl("gc", "plan", *APPS)
    assert len(empty.rows) == 1
    assert "the daemon removes nothing: the bucket of App.apps is empty" in empty.err
    assert (await natsctl("gc", "apply", *APPS, "--yes")).status == 1
    await jetstream.delete_key_value("apps")
    await jetstream.create_key_value(KeyValueConfig(bucket="apps", history=5))
    refused = await natsctl("gc", "apply", *APPS, "--yes")
    assert refused.status == 1
    assert (
        "nothing is removed: the bucket of App.apps is empty" in refused.err
    )  # the reason why garbage collection is held
    assert refused.err.endswith("; remove it anyway with --force\n")
    assert await keys(parts) == ["a"]
    forced = await natsctl.done("gc", "apply", *APPS, "--yes", "--force")
    assert forced.splitlines()[-1] == "Part.parts/a deleted"
