"""The commands that read and change the objects of buckets."""

import json

import pytest
import yaml

from tests.support.cli.natsctl_command import InProcess

KEYS = [f"shop-{number}" for number in range(12)]


async def test_many_objects_are_written_as_they_come_each_once(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in reversed(KEYS):
        words = ("greetings", key, f"spec: {{text: {key}}}")
        await in_process.done("put", *words, "--create-bucket")
    in_order = json.loads(await in_process.done("get", "greetings", "-o", "json"))
    assert [entry["key"] for entry in in_order] == sorted(KEYS)

    monkeypatch.setattr("natsctl.cli.get.SORTED_MAX", 11)
    streamed = json.loads(await in_process.done("get", "greetings", "-o", "json"))
    assert sorted(streamed, key=lambda entry: str(entry["key"])) == in_order
    documents = yaml.safe_load_all(await in_process.done("get", "greetings", "-o", "yaml"))
    for entries in (streamed, documents):
        assert [entry["key"] for entry in entries] == KEYS[::-1]
    for output in ("table", "wide", "name"):
        lines = (await in_process.done("get", "greetings", "-o", output)).splitlines()
        names = [line.split()[0].removeprefix("greetings/") for line in lines]
        assert [name for name in names if name != "KEY"] == KEYS[::-1]
    assert await in_process.done("get", "greetings", "-l", "no=such", "-o", "json") == "[]\n"
