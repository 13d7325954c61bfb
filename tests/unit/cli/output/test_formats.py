"""Formats with parameters, and tables that fit a terminal."""

import pytest

from natsctl.cli.output.formats import CustomColumns, FieldOutput, ordered, parse_format
from natsctl.cli.output.printing import Output, column_widths, fitted
from natsctl.errors import UsageError
from natsctl.jetstream.bucket import Message
from natsctl.model.schemas.field_paths import FieldPath


def message(key: str, value: bytes) -> Message:
    return Message(key, 1, value, marker=None, created="")


class TestParsing:
    def test_a_format_without_parameters_is_named(self) -> None:
        assert parse_format("json") is Output.JSON

    def test_a_field_has_a_path(self) -> None:
        assert parse_format("field=spec.image") == FieldOutput(FieldPath.parse("spec.image"))

    def test_custom_columns_have_headings_and_paths(self) -> None:
        parsed = parse_format("custom-columns=KEY:key,IMAGE:.spec.image")
        assert isinstance(parsed, CustomColumns)
        assert {name: path.text for name, path in parsed.columns.items()} == {
            "KEY": "key",
            "IMAGE": ".spec.image",
        }

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("jsn", "--output 'jsn' must be table, wide, .* or field=PATH"),
            ("custom-columns=KEY", "'KEY' is not a column HEADING:PATH"),
            ("custom-columns=KEY:", "'' is not the path of a field"),
            ("field=", "'' is not the path of a field"),
        ],
    )
    def test_another_format_is_refused(self, text: str, error: str) -> None:
        with pytest.raises(UsageError, match=error):
            parse_format(text)


def test_entries_are_ordered_by_a_field_and_otherwise_stay_in_order() -> None:
    entries = [
        message("a", b"text"),
        message("b", b'{"spec": {"size": 10}}'),
        message("c", b'{"spec": {"size": 9}}'),
        message("d", b"\xff"),
    ]
    in_order = ordered("b", entries, FieldPath.parse("spec.size"))
    assert [entry.key for entry in in_order] == ["c", "b", "a", "d"]


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
