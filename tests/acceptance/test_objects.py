"""The commands that read and change the objects of buckets."""

import json

import pytest
import yaml
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig

from tests.support.cli.natsctl_command import InProcess


@pytest.fixture
async def greetings(jetstream: JetStreamContext) -> JetStreamContext:
    """Create the bucket with a plain NATS client."""
    await jetstream.create_key_value(KeyValueConfig(bucket="greetings", history=5))
    return jetstream


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
