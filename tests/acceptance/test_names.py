"""Every command takes an object as BUCKET/KEY, or as BUCKET KEY."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig

from tests.support.cli.natsctl_command import InProcess, Natsctl, Running
from tests.support.cli.scripted_editor import Editor
from tests.support.eventually import eventually

GREETINGS = "controllers.greetings:Greetings"
PAUSED = "natsctl.io/paused"


@pytest.fixture
async def objects(in_process: InProcess, jetstream: JetStreamContext) -> InProcess:
    """The object `shop` in two buckets, and one that has the name of a bucket."""
    for bucket in ("greetings", "shops"):
        await jetstream.create_key_value(KeyValueConfig(bucket=bucket, history=10))
    for name in ("greetings/shop", "shops/shop", "shops/greetings", "greetings/a/b"):
        await in_process.done("put", name, '{"spec": {"text": "hi"}}')
    return in_process


async def paused(natsctl: InProcess) -> set[str]:
    """Return the names of the paused objects."""
    names: set[str] = set()
    for bucket in ("greetings", "shops"):
        listed = json.loads(await natsctl.done("get", bucket, "-o", "json"))
        names |= {
            f"{bucket}/{shown['key']}"
            for shown in listed
            if PAUSED in shown["metadata"].get("annotations", {})
        }
    return names


@pytest.mark.parametrize(
    ("words", "held"),
    [
        (["greetings", "shop"], {"greetings/shop"}),
        (["greetings/shop"], {"greetings/shop"}),
        (["shops", "greetings", "shop"], {"shops/greetings", "shops/shop"}),
        (["shops/greetings", "greetings/shop"], {"shops/greetings", "greetings/shop"}),
        (["greetings", "a/b"], {"greetings/a/b"}),
        (["greetings/a/b"], {"greetings/a/b"}),
    ],
)
async def test_pause_and_resume_act_on_the_objects_that_are_named(
    objects: InProcess, words: list[str], held: set[str]
) -> None:
    printed = await objects.done("pause", *words)
    assert {line.split()[0] for line in printed.splitlines()} == held
    assert await paused(objects) == held
    await objects.done("resume", *sorted(held))  # they read what they print
    assert await paused(objects) == set()


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["greetings"], "'greetings' alone names no object: write BUCKET/KEY, or BUCKET KEY; "),
        ([], "no object is named: write BUCKET/KEY, or BUCKET KEY; "),
        (["shops/shop", "greetings"], "'greetings' isn't BUCKET/KEY: after shops/shop every"),
        (["/shop"], "'/shop' has no bucket: write BUCKET/KEY, or BUCKET KEY"),
        (["greetings/"], "key ''"),
        (["--all", "shops/shop"], "--all is for the whole controller: name no object"),
    ],
)
async def test_a_name_that_is_not_complete_changes_nothing(
    objects: InProcess, command: str, words: list[str], error: str
) -> None:
    refused = await objects(command, *words)
    assert (refused.status, error in refused.err) == (2, True), refused
    if error.endswith("; "):
        assert f"natsctl {command} --all -c CONTROLLER is for a whole controller" in refused.err
    assert await paused(objects) == set()


async def test_the_commands_for_objects_read_what_they_print(
    objects: InProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    printed = await objects.done("put", "greetings", "shop", '{"spec": {"text": "two"}}')
    name = printed.split()[0]
    assert name == "greetings/shop"
    assert await objects.done("get", name, "-o", "jsonpath={.spec.text}") == "two\n"
    assert await objects.done("get", *name.split("/"), "-o", "jsonpath={.spec.text}") == "two\n"
    first = (await objects.done("history", name, "-o", "name")).split()[0]
    assert "configured" in await objects.done("rollback", name, "--to", first)
    assert await objects.done("get", name, "-o", "jsonpath={.spec.text}") == "hi\n"
    editor = Editor(tmp_path / "editor")
    editor.set_steps({"replace": {"hi": "edited"}})
    monkeypatch.setenv("EDITOR", editor.command)
    assert name in await objects.done("edit", name)
    assert await objects.done("get", name, "-o", "jsonpath={.spec.text}") == "edited\n"
    watched = await objects.done("get", "-w", name, "--once", "-o", "name")
    assert watched.split() == [name]
    deleted = await objects.done("delete", name, "shops/greetings")
    assert deleted == "greetings/shop deleted\nshops/greetings deleted\n"
    assert await objects.done("delete", "shops", "shop") == "shops/shop deleted\n"


async def test_get_lists_the_buckets_and_the_objects_of_one(objects: InProcess) -> None:
    assert await objects.done("get", "-o", "name") == "greetings\nshops\n"
    assert [row[0] for row in (await objects("get")).rows] == ["greetings", "shops"]
    assert (await objects("get", "-o", "json")).json[0] == {"bucket": "greetings", "kinds": []}
    narrowed = await objects.done("get", "greetings", "--keys", "shop", "-o", "name")
    assert narrowed == "greetings/shop\n"
    assert await objects.done("get", "-o", "jsonpath={.bucket}") == "greetings\nshops\n"


@pytest.mark.parametrize("words", [["edit", "shop"], ["history", "shop"], ["delete", "shop"]])
async def test_a_key_without_a_bucket_is_refused(objects: InProcess, words: list[str]) -> None:
    refused = await objects(*words)
    assert (refused.status, "write BUCKET/KEY, or BUCKET KEY" in refused.err) == (2, True)
    two = await objects("get", "greetings/shop", "shops/shop")
    assert (two.status, "are several objects: name one" in two.err) == (2, True)


async def test_a_kind_stands_for_its_bucket(
    natsctl: Natsctl, daemon: Callable[..., Awaitable[Running]]
) -> None:
    await daemon(GREETINGS)

    async def is_stored() -> bool:
        return (await natsctl("put", "Greeting/shop", "spec: {text: hi}")).status == 0

    await eventually(is_stored)

    async def is_drawn() -> list[str]:
        return (await natsctl.done("describe", "Greeting/shop", "-o", "name")).splitlines()[1:]

    await eventually(is_drawn)
    for name in await is_drawn():
        assert (await natsctl("get", name)).status == 0
    refused = await natsctl("put", "Greeting", "shop", "spec: {text: 5}")
    assert (refused.status, "spec.text" in refused.err) == (1, True), refused
    assert await natsctl.done("pause", "Greeting/shop") == "greetings/shop paused\n"
    assert "greetings/shop is paused" in (await natsctl("resync", "Greeting/shop")).err
    assert await natsctl.done("resume", "Greeting", "shop") == "greetings/shop resumed\n"
