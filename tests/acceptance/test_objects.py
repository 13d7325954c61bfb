"""The commands that read and change the objects of buckets."""

import json
from pathlib import Path

import pytest
import yaml
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig

from tests.support.cli.natsctl_command import InProcess, Natsctl
from tests.support.servers.nats_server import NatsServer


@pytest.fixture
async def greetings(jetstream: JetStreamContext) -> JetStreamContext:
    """Create the bucket with a plain NATS client."""
    await jetstream.create_key_value(KeyValueConfig(bucket="greetings", history=5))
    return jetstream


async def test_finalizers_delay_a_deletion_until_they_are_removed(
    natsctl: Natsctl, greetings: JetStreamContext
) -> None:
    bucket = await greetings.key_value("greetings")
    held = {"metadata": {"finalizers": ["x/y", "z"]}, "spec": {}}
    await bucket.put("shop", json.dumps(held).encode())
    marked = await natsctl.done("delete", "greetings", "shop")
    assert marked == "greetings/shop marked deleted, held by x/y, z\n"
    late = await natsctl("delete", "greetings", "shop", "--wait-timeout", "0.1")
    assert late.status == 1
    assert "shop of greetings not deleted within 100ms" in late.err
    assert (await natsctl("get", "greetings", "shop")).rows[0][3] == "Deleting"
    async with natsctl.running("delete", "greetings", "shop", "--wait") as waiting:
        await waiting.logged("held by x/y, z")
        await bucket.delete("shop")
        assert await waiting.ends() == 0


async def test_a_watch_shows_existing_objects_and_every_change(
    natsctl: Natsctl, greetings: JetStreamContext
) -> None:
    bucket = await greetings.key_value("greetings")
    await bucket.put("a", b'{"spec": 1}')
    async with natsctl.running("get", "-w", "greetings", "-o", "json") as watching:
        await watching.logged("\n", times=1)
        await bucket.put("b", b"text")
        await bucket.put("a", b'{"spec": 2}')
        await bucket.delete("b")
        await watching.logged("\n", times=4)
        lines = [json.loads(line) for line in watching.log.splitlines()]
    assert [(event["event"], event["key"], event["revision"]) for event in lines] == [
        ("added", "a", 1),
        ("added", "b", 2),
        ("updated", "a", 3),
        ("deleted", "b", 2),
    ]
    assert lines[2]["spec"] == 2
    async with natsctl.running("get", "-w", "greetings", "--keys", "a") as watching:
        await watching.logged("\n", times=2)
        headings, row = (line.split() for line in watching.log.splitlines())
    assert headings == ["EVENT", "KEY", "REVISION", "GENERATION", "READY", "AGE"]
    assert row[:3] == ["ADDED", "a", "3"]


async def test_a_watch_writes_the_headings_of_custom_columns_once(
    natsctl: Natsctl, greetings: JetStreamContext
) -> None:
    bucket = await greetings.key_value("greetings")
    await bucket.put("a", b'{"spec": 1}')
    columns = "custom-columns=K:key,SPEC:spec"
    async with natsctl.running("get", "-w", "greetings", "-o", columns) as watching:
        await watching.logged("\n", times=2)
        await bucket.put("b", b'{"spec": 2}')
        await watching.logged("\n", times=3)
        assert watching.log == "K   SPEC\na   1\nb   2\n"


@pytest.mark.usefixtures("greetings")
async def test_a_closed_pipe_ends_a_command_without_an_error(
    natsctl: Natsctl, folder: Path
) -> None:
    # 1.5 MB: more than the pipe and the reader take before the reader is closed
    documents = "\n".join(
        f"- {{bucket: greetings, key: k{n}, value: {'x' * 5000}}}" for n in range(300)
    )
    await natsctl.done("apply", "-f", "-", stdin=documents)
    async with natsctl.piped("get", "greetings", "-o", "yaml") as (reader, process):
        await reader.readline()
    assert await process.wait() == 141
    assert (folder / "piped.err").read_text() == ""


async def test_credentials_come_from_options_or_the_environment_and_are_never_shown(
    folder: Path, tmp_path: Path
) -> None:
    users = "authorization { user: ann, password: hush }"
    async with NatsServer(tmp_path / "closed", config=users) as server:
        words = ("put", "b", "a", "x", "--create-bucket", "-s", server.url, "--user", "ann")
        natsctl = Natsctl(folder)
        assert (await natsctl(*words)).status == 2
        assert (await natsctl(*words, "--password", "hush")).status == 0
        for wrong in (await natsctl(*words, "--password", "loud"), await natsctl(*words[:-2])):
            assert wrong.status == 1
            assert wrong.err.count("\n") == 1
            assert "the server refuses" in wrong.err
            assert "loud" not in wrong.err
        by_url = Natsctl(folder, server.url.replace("//", "//ann:hush@"))
        assert await by_url.done("get", "b", "a") == "x"


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml", "name"])
@pytest.mark.usefixtures("greetings")
async def test_many_objects_are_written_as_they_come_each_once(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    keys = [f"shop-{number}" for number in range(12)]
    for key in reversed(keys):
        await in_process.done("put", "greetings", key, f"spec: {{text: {key}}}")
    sorted_ = await in_process.done("get", "greetings", "-o", output)
    monkeypatch.setattr("natsctl.cli.get.SORTED_MAX", 11)
    streamed = await in_process.done("get", "greetings", "-o", output)
    if output == "json":
        sorted_keys, keys_streamed = (
            [entry["key"] for entry in json.loads(text)] for text in (sorted_, streamed)
        )
        assert keys_streamed == keys[::-1]
        assert sorted_keys == sorted(keys)
        again = sorted(json.loads(streamed), key=lambda entry: str(entry["key"]))
        assert again == json.loads(sorted_)
    elif output == "yaml":
        entries = list(yaml.safe_load_all(streamed))
        assert [entry["key"] for entry in entries] == keys[::-1]
    else:
        lines = [line.split()[0].removeprefix("greetings/") for line in streamed.splitlines()]
        assert [line for line in lines if line != "KEY"] == keys[::-1]
    assert await in_process.done("get", "greetings", "-l", "no=such", "-o", "json") == "[]\n"
