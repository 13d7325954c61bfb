"""What is set by a file, by variables and by flags: shown by `natsctl config`, done by `run`."""

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
    """A folder with settings and a controller, and an environment beside them."""
    (folder / "natsctl.toml").write_text(SETTINGS)
    (folder / "shops.py").write_text(SHOPS)
    return Natsctl(folder, nats_server.url, environ=ENVIRON)


async def test_config_shows_what_holds_and_who_said_so(shops: Natsctl) -> None:
    shown = await shops.done("config", "--workers", "4")
    rows = re.findall(r"^(\S+) +(\S+) +(\S.*)$", shown, re.MULTILINE)
    held = {name: (value, source) for name, value, source in rows}
    assert held["controllers.workers"] == ("4", "--workers")
    assert held["nats.token"] == ("***", "NATSCTL_TOKEN")
    assert held["nats.servers"][1] == "NATSCTL_SERVER"
    assert held["kube.enabled"] == ("false", "natsctl.toml:6")
    assert held["logs.format"] == ("json", "natsctl.toml:14")
    assert held["controllers.stop_timeout_s"] == ("25", "default")
    assert held["nats.context"] == ("none", "default")
    assert held["nats.marker_ttl_s"] == ("2592000", "default")


async def test_programs_read_the_same_and_nobody_reads_a_secret(shops: Natsctl) -> None:
    server = "nats://ann:hush-url@hub:4222,nats://bob:hush-other@b"
    told = [await shops.done("config", "-o", o, "-s", server) for o in ("json", "yaml", "table")]
    assert "hush" not in "".join(told)
    from_json = {each["setting"]: each for each in json.loads(told[0])}
    assert from_json == {each["setting"]: each for each in yaml.safe_load(told[1])}
    assert from_json["nats.servers"] == {
        "setting": "nats.servers",
        "value": ["nats://***@hub:4222", "nats://***@b"],
        "source": "--server",
        "default": "nats://127.0.0.1:4222",
    }
    assert from_json["controllers.workers"]["value"] == 3
    names = (await shops.done("config", "-o", "name")).split()
    assert names == list(from_json)


async def test_config_says_what_is_wrong_and_where(shops: Natsctl, folder: Path) -> None:
    (folder / "other.toml").write_text("[logs]\nformat = 'xml'\n")
    result = await shops("config", "--config", "other.toml")
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        "natsctl: error: logs.format in other.toml:2: 'xml' must be text or json; "
        'write format = "json"\n'
    )
    result = await shops("get", "shops", "a", "--config", "other.toml")
    assert result.status == 2


async def test_a_variable_that_is_no_setting_is_refused(folder: Path) -> None:
    natsctl = Natsctl(folder, environ={"NATSCTL_WORKRES": "3"})
    for words in (["config"], ["list", "shops"], ["run", "-c", "a:B"]):
        result = await natsctl(*words)
        assert result.status == 2
        assert result.err == (
            "natsctl: error: there is no variable NATSCTL_WORKRES; did you mean NATSCTL_WORKERS?\n"
        )


async def test_config_refuses_what_contradicts_itself(folder: Path) -> None:
    result = await Natsctl(folder)("config", "--user", "ann")
    assert result.status == 2
    assert "given without a password" in result.err


async def test_run_does_as_it_is_set_and_logs_no_secret(
    shops: Natsctl, jetstream: JetStreamContext
) -> None:
    async with shops.running("run", "-c", "shops:Shops") as running:
        await running.says("primaries listed, syncing")
        bucket = await jetstream.key_value("shops")
        await bucket.put("leaky", b'{"spec": {}}')
        await running.says('"attempt":2')
        assert await running.ends(signal.SIGTERM) == 0
    sign = json.loads((await (await jetstream.key_value("signs")).get("leaky")).value or b"")
    assert sign["spec"] == {"workers": 3}
    assert sign["metadata"]["labels"]["example.com/owner-key"] == "leaky"
    facts = [json.loads(line) for line in running.log.splitlines()]
    failed = next(
        fact for fact in facts if (fact["message"], fact.get("key")) == ("sync failed", "leaky")
    )
    about = [failed[name] for name in ("controller", "key", "operation", "attempt", "level")]
    assert about == ["shops", "leaky", "put", 1, "error"]
    assert "RuntimeError: *** at nats://***@hub" in failed["exception"]
    assert "hush" not in running.log


async def test_upkeep_finds_what_is_labelled_in_the_domain_that_is_set(
    shops: Natsctl, jetstream: JetStreamContext
) -> None:
    local = ("--local", "-c", "shops:Shops")
    async with shops.running("run", "-c", "shops:Shops") as running:
        await running.says("primaries listed, syncing")
        bucket = await jetstream.key_value("shops")
        await bucket.put("a", b'{"spec": {}}')
        await bucket.put("b", b'{"spec": {}}')

        async def made() -> bool:
            listed = await shops("list", "signs", "-o", "name")
            return listed.out.split() == ["a", "b"]

        await eventually(made)
        assert await running.ends(signal.SIGTERM) == 0
    await bucket.delete("a")
    plan = json.loads(await shops.done("gc", "plan", *local, "-o", "json"))
    assert [orphan["key"] for orphan in plan["orphans"]] == ["a"]
    elsewhere = await shops.done("gc", "plan", *local, "-o", "json", "--owner-domain", "kumori")
    assert json.loads(elsewhere)["orphans"] == []


async def test_no_secret_is_told_of_a_server_that_cannot_be_reached(shops: Natsctl) -> None:
    words = ("-s", "nats://ann:hush@127.0.0.1:1", "--log-level", "debug")
    async with shops.running("run", "-c", "shops:Shops", *words) as running:
        await running.says("no connection to NATS yet")
        assert await running.ends(signal.SIGTERM) == 0
    assert "hush" not in running.log
    result = await shops("get", "shops", "a", "-s", "nats://ann:hush@127.0.0.1:1")
    assert (result.status, "hush" in result.err) == (1, False)
