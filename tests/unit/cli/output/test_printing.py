"""The result of a command is written as a table, as names, as JSON, as YAML or as raw bytes."""

import io
import json
import sys

import msgspec
import pytest
import yaml

from natsctl.cli.output import write_result, write_table, write_value
from natsctl.cli.terminal import write_line


class Shop(msgspec.Struct):
    name: str
    tags: tuple[str, ...] = ()


SHOPS = [Shop("one", ("a", "b")), Shop("two")]


def written(capsys: pytest.CaptureFixture[str], output: str, result: object = SHOPS) -> str:
    write_result(result, output, names=["one", "two"], table=lambda: write_line("a table"))
    return capsys.readouterr().out


@pytest.mark.parametrize("result", [SHOPS, [], SHOPS[0]], ids=["several", "none", "one"])
def test_json_and_yaml_hold_the_same_data(
    capsys: pytest.CaptureFixture[str], result: object
) -> None:
    from_json = json.loads(written(capsys, "json", result))
    assert from_json == yaml.safe_load(written(capsys, "yaml", result))
    assert from_json == json.loads(msgspec.json.encode(result))


def test_each_name_is_on_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert written(capsys, "name") == "one\ntwo\n"


@pytest.mark.parametrize("output", ["table", "wide"])
def test_table_output_writes_the_table(capsys: pytest.CaptureFixture[str], output: str) -> None:
    assert written(capsys, output) == "a table\n"


def test_a_cell_of_a_table_is_one_line_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_table(["KEY", "REASON"], [["a\nb", "\x1b[2J\t\u202e"], ["long-key", "ok"]])
    assert capsys.readouterr().out.splitlines() == [
        "KEY        REASON",
        "a\\nb       \\x1b[2J\\t\\u202e",
        "long-key   ok",
    ]


def test_a_name_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    write_result([], "name", names=["a\x1b[2Jb\nc"], table=lambda: None)
    assert capsys.readouterr().out == "a\\x1b[2Jb\\nc\n"


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown"),
    [
        (Terminal, b"a\n\tb\\x1b[2J\\u202e\\xff\n"),
        (io.TextIOWrapper, "a\n\tb\x1b[2J\u202e".encode() + b"\xff"),
    ],
    ids=["terminal", "file"],
)
def test_a_value_is_exact_in_a_file_and_escaped_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.TextIOWrapper], shown: bytes
) -> None:
    written_bytes = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", stream(written_bytes, encoding="utf-8"))
    write_value("a\n\tb\x1b[2J\u202e".encode() + b"\xff")
    sys.stdout.flush()
    assert written_bytes.getvalue() == shown
