"""Shows all controllers, and the failing keys grouped by message."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Static

from natsctl.cli.top.cells import (
    CONTROLLER_HEADINGS,
    FAILURE_HEADINGS,
    NARROW,
    WIDE_ONLY,
    controller_cells,
    failure_cells,
)
from natsctl.cli.top.keys import ControllerScreen, FailureScreen, ask_for_key
from natsctl.cli.top.live import OverviewScreen
from natsctl.cli.top.table import LiveTable
from natsctl.console.actions import Request
from natsctl.console.home import Home


class HomeScreen(OverviewScreen):
    """The first view."""

    main = "#controllers"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "open_key", "Open key")]

    def heading(self) -> str:
        """See `LiveScreen.heading`."""
        return "natsctl top"

    def body(self) -> ComposeResult:
        """See `LiveScreen.body`."""
        yield LiveTable(id="controllers")
        yield Static("failing keys, by message", classes="heading", markup=False)
        yield LiveTable(id="failures")

    @property
    def controllers(self) -> LiveTable:
        """The table of controllers."""
        return self.query_one("#controllers", LiveTable)

    @property
    def failures(self) -> LiveTable:
        """The table of messages."""
        return self.query_one("#failures", LiveTable)

    def show(self, answer: Home) -> None:
        """See `LiveScreen.show`."""
        wide = self.app.size.width >= NARROW
        headings = CONTROLLER_HEADINGS if wide else CONTROLLER_HEADINGS[:-WIDE_ONLY]
        rows = {row.name: controller_cells(row, wide=wide) for row in answer.controllers}
        self.controllers.fill(headings, self.filtered(rows))
        groups = {group.message: failure_cells(group) for group in answer.failing}
        self.failures.fill(FAILURE_HEADINGS, self.filtered(groups))

    def on_resize(self) -> None:
        """Show the columns that fit."""
        if self.answer is not None:
            self.show(self.answer)

    def subject(self) -> Request | None:
        """See `LiveScreen.subject`."""
        name = None if self.failures.has_focus else self.controllers.selected
        return None if name is None else Request(controller=name, everything=True)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the selected controller or message."""
        name = event.row_key.value
        if name is None:
            return
        if event.data_table is self.failures:
            self.app.push_screen(FailureScreen(self.answers, name))
        else:
            self.app.push_screen(ControllerScreen(self.answers, name))

    def action_open_key(self) -> None:
        """Open a key of the selected controller by its name."""
        name = self.controllers.selected
        if name is not None:
            ask_for_key(self, name)
