"""Commands print hostile stored values safely, one line for each key."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig

from tests.support.cli.natsctl_command import InProcess, Natsctl, Running
from tests.support.eventually import eventually

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u200b\r\n\tend"
DEEP = b'{"spec": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"
HOSTILE = {
    "metadata": {
        "labels": {ESCAPES: ESCAPES},
        "uid": [ESCAPES],
        "generation": {ESCAPES: 1},
        "creationTimestamp": ESCAPES,
    },
    "spec": {"text": ESCAPES},
    "status": {"conditions": [{"type": "Ready", "status": ESCAPES, "reason": ESCAPES}]},
}
CONTROLLER = """
from natsctl import Controller, Object, kv, primary, secondary

class App(Object, frozen=True):
    spec: dict[str, str] = {}

class Part(Object, frozen=True):
    spec: dict[str, str] = {}

class Apps(Controller):
    apps = primary(kv(App, bucket="apps"))
    parts = secondary(kv(Part, bucket="parts"))

    async def sync_handler(self, key):
        app = self.apps.get(key)
        if app is not None:
            await self.parts.apply(key, Part(spec=app.spec))
            await self.apps.update_status(key, {"conditions": [
                {"type": "Ready", "status": app.spec["text"], "reason": app.spec["text"]}]})
            raise ValueError(app.spec["text"])
"""


async def create_apps(jetstream: JetStreamContext, **values: bytes) -> None:
    """Create the bucket `apps` with these values."""
    created = await jetstream.create_key_value(KeyValueConfig(bucket="apps", history=5))
    for key, value in values.items():
        await created.put(key, value)


def safe(text: str, keep: str = "\n") -> bool:
    return all(character.isprintable() or character in keep for character in text)


async def test_no_command_prints_an_escape_of_a_stored_object(
    in_process: InProcess, jetstream: JetStreamContext
) -> None:
    await create_apps(jetstream, evil=json.dumps(HOSTILE).encode(), text=ESCAPES.encode())
    for words in (
        *(["get", "apps"], ["get", "apps", "-o", "wide"]),
        *(["get", "apps", "-o", "json"], ["get", "apps", "-o", "yaml"]),
        *(["get", "apps", "evil"], ["history", "apps", "evil"], ["history", "apps", "text"]),
        *(["repair", "external", "list"], ["get", "apps", f"k{ESCAPES}"], ["get", f"b{ESCAPES}"]),
        *(["get", "apps", "-l", ESCAPES], ["put", "apps", "evil", "x", "--revision", ESCAPES]),
    ):
        result = await in_process(*words)
        assert result.out or result.err
        assert safe(result.out), words
        assert safe(result.err), words


async def test_documents_keep_every_character_of_a_stored_object(
    in_process: InProcess, jetstream: JetStreamContext
) -> None:
    await create_apps(jetstream, evil=json.dumps(HOSTILE).encode())
    from_json = (await in_process("get", "apps", "evil", "-o", "json")).json
    assert {name: from_json[name] for name in HOSTILE} == HOSTILE
    assert yaml.safe_load((await in_process("get", "apps", "evil", "-o", "yaml")).out) == from_json


async def test_no_command_prints_an_escape_from_the_response_of_a_daemon(
    in_process: InProcess,
    daemon: Callable[..., Awaitable[Running]],
    natsctl: Natsctl,
    jetstream: JetStreamContext,
    folder: Path,
) -> None:
    (folder / "shop.py").write_text(CONTROLLER)
    await create_apps(jetstream, good=b'{"spec": {"text": "hi"}}')
    running = await daemon("shop:Apps")
    await natsctl.done("put", "apps", "evil", json.dumps(HOSTILE), "--validate=ignore")
    await running.logged("sync failed  ")

    async def failing() -> bool:
        return "evil fails" in (await in_process("status")).out

    await eventually(failing)
    for words in (["status"], ["describe", "apps/evil"]):
        result = await in_process(*words)
        assert "\\x1b[2J" in result.out + result.err, words
        assert safe(result.out), words
        assert safe(result.err), words
    assert safe(running.log, keep="\n\t")


async def test_lists_show_deeply_nested_json_as_one_line(
    in_process: InProcess, jetstream: JetStreamContext
) -> None:
    await create_apps(jetstream, deep=DEEP, good=b'{"spec": {"a": 1}}')
    result = await in_process("get", "apps")
    assert (result.status, len(result.out.splitlines())) == (0, 3)
    history = await in_process("history", "apps", "deep")
    assert (history.status, len(history.rows)) == (0, 1)
    assert (await in_process("get", "apps", "deep")).out.encode() == DEEP


@pytest.mark.parametrize("depth", [150, 900, 940, 960, 980, 100_000])
async def test_documents_of_every_depth_are_written(
    in_process: InProcess, jetstream: JetStreamContext, depth: int
) -> None:
    value = b'{"spec":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
    await create_apps(jetstream, deep=value)
    for output in ("json", "yaml"):
        for words in (["get", "apps", "deep"], ["history", "apps", "deep"], ["get", "apps"]):
            result = await in_process(*words, "-o", output)
            assert (result.status, result.err) == (0, "")
            assert result.out.count("a") > depth


async def test_a_daemon_counts_an_object_that_is_nested_too_deeply_as_invalid(
    in_process: InProcess,
    daemon: Callable[..., Awaitable[Running]],
    jetstream: JetStreamContext,
    folder: Path,
) -> None:
    (folder / "shop.py").write_text(CONTROLLER.replace("dict[str, str]", "dict[str, object]"))
    await create_apps(jetstream, deep=DEEP)
    await daemon("shop:Apps")
    [status] = (await in_process("status", "-o", "json")).json
    assert status["invalid_count"] == 1
    for words in (["describe", "apps/deep"],):
        result = await in_process(*words)
        assert result.status == 0
        assert "not a valid App: " in result.out
