"""`natsctl config` shows the settings of files, variables and flags, and `run` uses them."""

import json
import re
import signal
from pathlib import Path

import pytest
import yaml
from nats.js import JetStreamContext

from tests.support.cli.natsctl_command import Natsctl
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

SETTINGS = """
[nats]
token = "hush-in-file"

[kube]
enabled = false
token = "hush-of-kube"

[controllers]
workers = 2
owner_domain = "example.com"

[logs]
format = "json"
level = "info,natsctl.core=debug"
"""

SHOPS = """
import os
from natsctl import Controller, Object, kv, primary, secondary

class Shop(Object, frozen=True):
    spec: dict[str, object] = {}

class Shops(Controller):
    shops = primary(kv(Shop, bucket="shops"))
    signs = secondary(kv(Shop, bucket="signs"))

    async def sync_handler(self, key):
        await self.signs.apply(key, Shop(spec={"workers": self.workers}))
        if key == "leaky":
            raise RuntimeError(f"{os.environ['NATSCTL_TOKEN']} at nats://ann:hush-url@hub")
"""

ENVIRON = {"NATSCTL_TOKEN": "hush-in-variable", "NATSCTL_WORKERS": "3"}


@pytest.fixture
def shops(folder: Path, nats_server: NatsServer) -> Natsctl:
    """Return natsctl in a folder with a settings file and a controller, and with variables."""
    (folder / "natsctl.toml").write_text(SETTINGS)
    (folder / "shops.py").write_text(SHOPS)
    return Natsctl(folder, nats_server.url, environ=ENVIRON)


async def test_config_shows_each_setting_with_its_source(shops: Natsctl) -> None:
    shown = await shops.done("config", "--workers", "4")
    rows = re.findall(r"^(\S+) +(\S+) +(\S.*)$", shown, re.MULTILINE)
    settings = {name: (value, source) for name, value, source in rows}
    assert settings["controllers.workers"] == ("4", "--workers")
    assert settings["nats.token"] == ("***", "NATSCTL_TOKEN")
    assert settings["nats.servers"][1] == "NATSCTL_SERVER"
    assert settings["kube.enabled"] == ("false", "natsctl.toml")
    assert settings["logs.format"] == ("json", "natsctl.toml")
    assert settings["controllers.stop_timeout_s"] == ("25", "default")
    assert settings["nats.context"] == ("none", "default")
    assert settings["nats.marker_ttl_s"] == ("2592000", "default")


async def test_config_prints_the_same_settings_in_each_format_without_secrets(
    shops: Natsctl,
) -> None:
    server = "nats://ann:hush-url@hub:4222,nats://bob:hush-other@b"
    outputs = [await shops.done("config", "-o", o, "-s", server) for o in ("json", "yaml", "table")]
    assert "hush" not in "".join(outputs)
    from_json = {entry["setting"]: entry for entry in json.loads(outputs[0])}
    assert from_json == {entry["setting"]: entry for entry in yaml.safe_load(outputs[1])}
    assert from_json["nats.servers"] == {
        "setting": "nats.servers",
        "value": ["nats://***@hub:4222", "nats://***@b"],
        "source": "--server",
        "default": "nats://127.0.0.1:4222",
    }
    assert from_json["controllers.workers"]["value"] == 3
    names = (await shops.done("config", "-o", "name")).split()
    assert names == list(from_json)


async def test_config_reports_an_invalid_setting_with_its_file(
    shops: Natsctl, folder: Path
) -> None:
    (folder / "other.toml").write_text("[logs]\nformat = 'xml'\n")
    result = await shops("config", "--config", "other.toml")
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        "natsctl: error: logs.format in other.toml: 'xml' must be text or json; "
        'write format = "json"\n'
    )
    result = await shops("get", "shops", "a", "--config", "other.toml")
    assert result.status == 2


async def test_an_unknown_natsctl_variable_is_refused(folder: Path) -> None:
    natsctl = Natsctl(folder, environ={"NATSCTL_WORKRES": "3"})
    for words in (["config"], ["get", "shops"], ["run", "-c", "a:B"]):
        result = await natsctl(*words)
        assert result.status == 2
        assert result.err == (
            "natsctl: error: there is no variable NATSCTL_WORKRES; did you mean NATSCTL_WORKERS?\n"
        )


async def test_config_refuses_a_user_without_a_password(folder: Path) -> None:
    result = await Natsctl(folder)("config", "--user", "ann")
    assert result.status == 2
    assert "given without a password" in result.err


async def test_run_uses_the_settings_and_logs_no_secret(
    shops: Natsctl, jetstream: JetStreamContext
) -> None:
    async with shops.running("run", "-c", "shops:Shops") as running:
        await running.logged("primaries listed, syncing")
        bucket = await jetstream.key_value("shops")
        await bucket.put("leaky", b'{"spec": {}}')
        await running.logged('"attempt":2')
        assert await running.ends(signal.SIGTERM) == 0
    sign = json.loads((await (await jetstream.key_value("signs")).get("leaky")).value or b"")
    assert sign["spec"] == {"workers": 3}
    assert sign["metadata"]["labels"]["example.com/owner-key"] == "leaky"
    records = [json.loads(line) for line in running.log.splitlines()]
    failed = next(
        record
        for record in records
        if (record["message"], record.get("key")) == ("sync failed", "leaky")
    )
    fields = [failed[name] for name in ("controller", "key", "operation", "attempt", "level")]
    assert fields == ["shops", "leaky", "put", 1, "error"]
    assert "RuntimeError: *** at nats://***@hub" in failed["exception"]
    assert "hush" not in running.log


async def test_gc_plan_finds_only_secondaries_with_labels_of_the_owner_domain(
    shops: Natsctl, jetstream: JetStreamContext
) -> None:
    local = ("--local", "-c", "shops:Shops")
    async with shops.running("run", "-c", "shops:Shops") as running:
        await running.logged("primaries listed, syncing")
        bucket = await jetstream.key_value("shops")
        await bucket.put("a", b'{"spec": {}}')
        await bucket.put("b", b'{"spec": {}}')

        async def signs_exist() -> bool:
            listed = await shops("get", "signs", "-o", "name")
            return listed.out.split() == ["signs/a", "signs/b"]

        await eventually(signs_exist)
        assert await running.ends(signal.SIGTERM) == 0
    await bucket.delete("a")
    plan = json.loads(await shops.done("gc", "plan", *local, "-o", "json"))
    assert [orphan["key"] for orphan in plan["orphans"]] == ["a"]
    elsewhere = await shops.done("gc", "plan", *local, "-o", "json", "--owner-domain", "kumori")
    assert json.loads(elsewhere)["orphans"] == []


async def test_the_error_about_an_unreachable_server_has_no_password(shops: Natsctl) -> None:
    words = ("-s", "nats://ann:hush@127.0.0.1:1", "--log-level", "debug")
    async with shops.running("run", "-c", "shops:Shops", *words) as running:
        await running.logged("no connection to NATS yet")
        assert await running.ends(signal.SIGTERM) == 0
    assert "hush" not in running.log
    result = await shops("get", "shops", "a", "-s", "nats://ann:hush@127.0.0.1:1")
    assert (result.status, "hush" in result.err) == (1, False)
