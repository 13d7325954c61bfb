"""What commands print: tables, documents and errors."""

import io
import json
import sys

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from natsctl.cli.command import FAILED, USAGE, report, report_error
from natsctl.cli.output import (
    CustomColumns,
    column_widths,
    fitted,
    json_text,
    parse_format,
    write_result,
    write_table,
    write_value,
    yaml_text,
)
from natsctl.cli.terminal import write_line
from natsctl.errors import UsageError
from natsctl.telemetry.escaping import escaped, escaped_lines

# ---- formats with parameters, and tables that fit a terminal

SHOPS = [
    {"metadata": {"name": "a"}, "spec": {"text": "hi", "tags": ["x", "y"]}},
    {"metadata": {"name": "b"}, "spec": {}},
]


def written(capsys: pytest.CaptureFixture[str], output: str) -> str:
    write_result(SHOPS, output, names=(), table=lambda: None)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("template", "lines"),
    [
        ("{.spec.text}", "hi\n\n"),
        ("spec.text", "hi\n\n"),
        ("{.metadata.name}{'=>'}{.spec.text}{'\\n'}", "a=>hi\nb=>\n"),
        ("{.spec.tags[*]}", "x y\n\n"),
        ("{.items[*].metadata.name}", "a b\n"),
        ("name: {.metadata.name}", "name: a\nname: b\n"),
    ],
)
def test_a_jsonpath_is_a_template_of_each_object(
    template: str, lines: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(capsys, f"jsonpath={template}") == lines


def test_custom_columns_have_headings_and_paths(capsys: pytest.CaptureFixture[str]) -> None:
    parsed = parse_format("custom-columns=KEY:key,IMAGE:.spec.image")
    assert isinstance(parsed, CustomColumns)
    assert {name: path.text for name, path in parsed.columns.items()} == {
        "KEY": "key",
        "IMAGE": ".spec.image",
    }
    columns = "custom-columns=NAME:metadata.name,TEXT:spec.text"
    assert written(capsys, columns) == "NAME   TEXT\na      hi\nb      <none>\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("custom-columns=KEY", "'KEY' is not a column HEADING:PATH"),
        ("custom-columns=KEY:", "'' is not the path of a field"),
        ("jsonpath={.a..b}", "is not the path of a field"),
        ("jsonpath={range .items[*]}{.a}{end}", "jsonpath has no range here"),
    ],
)
def test_another_format_is_refused(text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse_format(text)


class TestFitting:
    HEADINGS = ("KEY", "IMAGE", "AGE")
    ROWS = (("shop", "i" * 60, "1s"), ("market", "nginx", "2s"))

    def test_the_widest_column_is_cut_until_the_row_fits(self) -> None:
        rows = fitted(self.HEADINGS, self.ROWS, ["IMAGE"], width=40)
        assert sum(column_widths(self.HEADINGS, rows)) + 6 == 40
        assert rows[0][1].endswith("…")
        assert rows[1] == ["market", "nginx", "2s"]

    def test_a_table_that_fits_is_not_cut(self) -> None:
        assert fitted(self.HEADINGS, self.ROWS, ["IMAGE"], width=200) == list(map(list, self.ROWS))

    def test_a_column_keeps_some_characters_on_a_narrow_terminal(self) -> None:
        rows = fitted(self.HEADINGS, self.ROWS, ["IMAGE"], width=5)
        assert [len(row[1]) for row in rows] == [12, 5]

    def test_other_columns_are_not_cut(self) -> None:
        assert fitted(self.HEADINGS, self.ROWS, ["AGE"], width=20)[0][1] == "i" * 60


# ---- the result of a command is printed as a table, as names, as JSON, as YAML or as raw bytes


class Shop(msgspec.Struct):
    name: str
    tags: tuple[str, ...] = ()


TYPED = [Shop("one", ("a", "b")), Shop("two")]


def printed(capsys: pytest.CaptureFixture[str], output: str, result: object = TYPED) -> str:
    write_result(result, output, names=["one", "two"], table=lambda: write_line("a table"))
    return capsys.readouterr().out


@pytest.mark.parametrize("result", [TYPED, [], TYPED[0]], ids=["several", "none", "one"])
def test_json_and_yaml_hold_the_same_data(
    capsys: pytest.CaptureFixture[str], result: object
) -> None:
    from_json = json.loads(printed(capsys, "json", result))
    assert from_json == yaml.safe_load(printed(capsys, "yaml", result))
    assert from_json == json.loads(msgspec.json.encode(result))


def test_each_name_is_on_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "name") == "one\ntwo\n"


@pytest.mark.parametrize("output", ["table", "wide"])
def test_table_output_writes_the_table(capsys: pytest.CaptureFixture[str], output: str) -> None:
    assert printed(capsys, output) == "a table\n"


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


# ---- control and invisible characters are escaped without changing a document's meaning

HOSTILE = {
    "ANSI": "\x1b[2J",
    "OSC": "\x1b]0;title\x07",
    "C1": "\x9b31m",
    "delete": "\x7f",
    "carriage return": "\r",
    "bidi override": "\u202e",
    "bidi isolate": "\u2066",
    "arabic letter mark": "\u061c",
    "zero-width space": "\u200b",
    "zero-width joiner": "\u200d",
    "byte order mark": "\ufeff",
    "line separator": "\u2028",
    "soft hyphen": "\xad",
    "variation selector": "\ufe0f",
    "tag": "\U000e0041",
    "hangul filler": "\u3164",
}
TEXTS = st.text() | st.sampled_from(list(HOSTILE.values()))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_character_that_controls_or_hides_becomes_a_visible_escape(text: str) -> None:
    shown = escaped(f"a{text}b")
    assert shown.startswith("a\\")
    assert shown.endswith("b")
    assert shown.isascii()


@pytest.mark.parametrize("text", ["plain", "größer", "日本語", "a b", "…→└─", "🙂", "\xa0", "٣"])
def test_visible_text_is_unchanged(text: str) -> None:
    assert escaped(text) == text


def test_a_line_has_no_line_break_and_no_tab() -> None:
    assert escaped("a\nb\tc") == r"a\nb\tc"


def test_further_lines_of_a_text_are_indented() -> None:
    assert escaped_lines("one\n\ttwo\x1b\r\nthree") == "one\n  \ttwo\\x1b\\x0d\n  three"


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS)))
def test_escaped_json_keeps_its_meaning(document: dict[str, object]) -> None:
    text = json_text(document)
    assert json.loads(text) == document
    assert escaped(text, keep="\n") == text


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS) | st.integers() | st.none()))
def test_escaped_yaml_keeps_its_meaning(document: dict[str, object]) -> None:
    text = yaml_text(document)
    assert yaml.safe_load(text) == document
    assert escaped(text, keep="\n") == text


# ---- errors are reported without secrets and give the exit code of the command


def test_a_url_in_an_error_is_shown_without_credentials(capsys: pytest.CaptureFixture[str]) -> None:
    report_error("nats://ann:hush@hub:4222 is down")
    assert capsys.readouterr().err == "natsctl: error: nats://***@hub:4222 is down\n"


def test_an_unexpected_error_is_reported_with_a_traceback_without_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = ExceptionGroup(
        "several", [OSError("at nats://ann:hush@hub"), UsageError("tls://hush@hub is wrong")]
    )
    error.exceptions[0].__cause__ = ValueError("Bearer hushhush")
    assert report(error) == FAILED
    reported = capsys.readouterr().err
    assert "OSError: at nats://***@hub\n" in reported
    assert "ValueError: Bearer ***\n" in reported
    assert "natsctl: error: tls://***@hub is wrong\n" in reported
    assert "hush" not in reported
    assert report(error.exceptions[1]) == USAGE
