"""What a command has found is written for people, or the same for every sort of program."""

import json

import msgspec
import pytest
import yaml

from natsctl.cli.printing import Output, line, write_found


class Shop(msgspec.Struct):
    name: str
    tags: tuple[str, ...] = ()


FOUND = [Shop("one", ("a", "b")), Shop("two")]


def written(capsys: pytest.CaptureFixture[str], output: Output, found: object = FOUND) -> str:
    write_found(found, output, names=["one", "two"], table=lambda: line("a table"))
    return capsys.readouterr().out


@pytest.mark.parametrize("found", [FOUND, [], FOUND[0]], ids=["several", "none", "one"])
def test_json_and_yaml_say_the_same(capsys: pytest.CaptureFixture[str], found: object) -> None:
    from_json = json.loads(written(capsys, Output.JSON, found))
    assert from_json == yaml.safe_load(written(capsys, Output.YAML, found))
    assert from_json == json.loads(msgspec.json.encode(found))


@pytest.mark.parametrize("output", [Output.NAME, Output.VALUE])
def test_names_are_a_line_each(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    assert written(capsys, output) == "one\ntwo\n"


@pytest.mark.parametrize("output", [Output.TABLE, Output.WIDE])
def test_people_read_a_table(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    assert written(capsys, output) == "a table\n"
