"""Formats with parameters, and tables that fit a terminal."""

import pytest

from natsctl.cli.output import CustomColumns, column_widths, fitted, parse_format, write_result
from natsctl.errors import UsageError

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
