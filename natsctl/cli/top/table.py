"""A table whose rows change in place, so that the selection and the scroll position stay."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

Rows = Mapping[str, Sequence[Text]]
"""The cells of each row, by the row's key."""


class LiveTable(DataTable[Text]):
    """A table with the keys of vi."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("g", "scroll_top", "First", show=False),
        Binding("G", "scroll_bottom", "Last", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - the base's word
        super().__init__(id=id, cursor_type="row")
        self._widths: dict[str, int] = {}  # of the columns, by heading
        self._shown: dict[str, Sequence[Text]] = {}

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor; None if the table is empty."""
        keys = list(self._shown)
        return keys[self.cursor_row] if self.cursor_row < len(keys) else None

    def fill(self, headings: Sequence[str], rows: Rows) -> None:
        """Show these rows; cells that did not change are not drawn again."""
        widths = {
            heading: max(len(heading), *(cells[number].cell_len for cells in rows.values()), 0)
            for number, heading in enumerate(headings)
        }
        if list(widths.items()) != list(self._widths.items()) or list(rows) != list(self._shown):
            self._widths = widths
            self._replace(rows)
        else:
            for key, cells in rows.items():
                for heading, cell, before in zip(headings, cells, self._shown[key], strict=True):
                    if (cell, cell.style) != (before, before.style):
                        self.update_cell(key, heading, cell)
        self._shown = dict(rows)

    def _replace(self, rows: Rows) -> None:
        """Show other rows; the cursor stays on its row, or else at its place."""
        key, place, top = self.selected, self.cursor_row, self.scroll_y
        self.clear(columns=True)
        for heading, width in self._widths.items():
            self.add_column(heading, key=heading, width=width)
        for name, cells in rows.items():
            self.add_row(*cells, key=name)
        keys = list(rows)
        if keys:
            row = keys.index(str(key)) if key in rows else min(place, len(keys) - 1)
            self.move_cursor(row=row, scroll=False)
            self.scroll_to(y=top, animate=False, force=True)
