"""`natsctl resync` and `natsctl gc` with `--local` work without a daemon."""

import json
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import NotFoundError
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


async def test_resync_syncs_every_key_once(
    natsctl: Natsctl, apps: KeyValue, parts: KeyValue
) -> None:
    await apps.put("a", b'{"spec": {"size": "s"}}')
    await apps.put("b", b'{"spec": {"size": "m"}}')
    assert await natsctl.done("resync", *APPS) == "2 of 2 synced\n"
    assert json.loads((await parts.get("b")).value or b"")["spec"] == {"size": "m"}
    assert (await natsctl("get", "apps", "a")).rows[0][3] == "True"
    await parts.delete("a")
    assert await natsctl.done("resync", *APPS, "apps/b") == "1 of 1 synced\n"
    assert await keys(parts) == ["b"]


async def test_resync_reports_failed_keys_with_their_errors(
    natsctl: Natsctl, apps: KeyValue, parts: KeyValue
) -> None:
    await apps.put("bad", b'{"spec": {"size": "wrong"}}')
    await apps.put("good", b'{"spec": {"size": "m"}}')
    await apps.put("odd", b'{"spec": 5}')
    result = await natsctl("resync", *APPS)
    assert (result.status, result.out) == (1, "1 of 3 synced\n")
    assert sorted(result.err.splitlines()) == [
        "natsctl: error: bad: ValueError: no such size",
        "natsctl: error: odd: not a valid App: Expected `object`, got `int` - at `$.spec`",
    ]
    assert await keys(parts) == ["good"]
    shown = await natsctl("resync", *APPS, "apps/bad", "--verbose")
    assert 'raise ValueError("no such size")' in shown.err
    missing = await natsctl("resync", *APPS, "apps/nobody")
    assert (missing.status, missing.err) == (
        3,
        "natsctl: error: nobody: it does not exist\n",
    )


async def test_resync_of_a_deleted_key_deletes_its_secondaries(
    natsctl: Natsctl, apps: KeyValue, parts: KeyValue
) -> None:
    await apps.put("a", b'{"spec": {}}')
    await apps.put("b", b'{"spec": {}}')
    await natsctl.done("resync", *APPS)
    await apps.delete("a")
    await natsctl.done("resync", *APPS, "apps/a")
    assert await keys(parts) == ["b"]


async def test_local_commands_create_no_bucket(
    natsctl: Natsctl, apps: KeyValue, jetstream: JetStreamContext
) -> None:
    for words in (["resync"], ["gc", "plan"], ["gc", "apply", "--yes"]):
        result = await natsctl(*words, *APPS)
        assert result.status == 3
        assert "bucket parts does not exist" in result.err
    with pytest.raises(NotFoundError):
        await jetstream.key_value("parts")


async def test_gc_plan_shows_orphans_and_gc_apply_removes_only_them(
    natsctl: Natsctl, apps: KeyValue, parts: KeyValue
) -> None:
    await apps.put("a", b'{"spec": {}}')
    await natsctl.done("resync", *APPS)
    planned = await natsctl("gc", "plan", *APPS)
    assert (planned.status, planned.out, planned.err) == (0, "", "there are no orphans\n")
    await orphan(parts, "lost", owner="nobody")
    await parts.put("free", b'{"spec": {}}')
    plan = await natsctl("gc", "plan", *APPS)
    assert [row[:4] for row in plan.rows] == [["Part.parts", "lost", "2", "nobody"]]
    assert "owner nobody does not exist" in plan.out
    refused = await natsctl("gc", "apply", *APPS)
    assert refused.status == 2
    assert "Remove this object?" in refused.err
    assert await keys(parts) == ["a", "free", "lost"]
    done = await natsctl.done("gc", "apply", *APPS, "--yes")
    assert done.splitlines()[-1] == "Part.parts/lost deleted"
    assert await keys(parts) == ["a", "free"]


async def test_gc_apply_removes_only_unchanged_orphans_of_a_plan_file(
    natsctl: Natsctl, apps: KeyValue, parts: KeyValue, folder: Path
) -> None:
    await apps.put("a", b'{"spec": {}}')
    for name in ("one", "two", "three"):
        await orphan(parts, name, owner=f"no-{name}")
    (folder / "plan.json").write_text(await natsctl.done("gc", "plan", *APPS, "-o", "json"))
    await orphan(parts, "two", owner="no-two")  # changed after the plan
    await apps.put("no-three", b'{"spec": {}}')  # its owner exists again
    await orphan(parts, "four", owner="no-four")  # created after the plan
    result = await natsctl("gc", "apply", *APPS, "--plan", "plan.json", "--yes")
    assert (result.status, result.out) == (4, "Part.parts/one deleted\n")
    assert [line.split()[0] for line in result.err.splitlines()] == [
        "Part.parts/three",
        "Part.parts/two",
    ]
    assert await keys(parts) == ["four", "three", "two"]
    (folder / "other.json").write_text('{"controller": "others", "orphans": []}')
    wrong = await natsctl("gc", "apply", *APPS, "--plan", "other.json", "--yes")
    assert (wrong.status, wrong.err) == (
        2,
        "natsctl: error: other.json is a plan of others, not of apps\n",
    )
    (folder / "other.json").write_text("[]")
    assert (await natsctl("gc", "apply", *APPS, "--plan", "other.json", "--yes")).status == 2


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
