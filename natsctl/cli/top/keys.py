"""Shows the keys of a controller that need attention, or the keys that fail with one message."""

from abc import abstractmethod
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Static

from natsctl.cli.top.answers import Answers, ControllerState
from natsctl.cli.top.cells import KEY_HEADINGS, KeyRow, facts_of, key_cells, keys_of
from natsctl.cli.top.dialogs import Question
from natsctl.cli.top.key import KeyScreen
from natsctl.cli.top.live import NO_DAEMON, LiveScreen, OverviewScreen
from natsctl.cli.top.table import LiveTable
from natsctl.console.actions import Request
from natsctl.console.answers import Partial, Problem
from natsctl.console.home import Home
from natsctl.telemetry.hiding import first_line

T = TypeVar("T")


def ask_for_key(screen: LiveScreen[T], controller: str) -> None:
    """Ask for the name of a key, and open the key."""

    def answered(key: str | None) -> None:
        if key:
            screen.app.push_screen(KeyScreen(screen.answers, controller, key))

    screen.app.push_screen(Question(f"Key of {controller}:"), answered)


class KeysScreen(LiveScreen[T]):
    """A table of keys under `headings`."""

    main = "#keys"
    headings: ClassVar[tuple[str, ...]] = KEY_HEADINGS

    def body(self) -> ComposeResult:
        """See `LiveScreen.body`."""
        yield Static(id="facts", markup=False)
        yield LiveTable(id="keys")

    @abstractmethod
    def rows(self, answer: T) -> list[KeyRow]:
        """Return the keys."""

    @abstractmethod
    def facts(self, answer: T) -> list[str]:
        """Return the lines above the table."""

    @property
    def table(self) -> LiveTable:
        """The table."""
        return self.query_one("#keys", LiveTable)

    def show(self, answer: T) -> None:
        """See `LiveScreen.show`."""
        rows = {f"{row.controller}/{row.key}": key_cells(row) for row in self.rows(answer)}
        self.table.fill(self.headings, self.filtered(rows))
        self.query_one("#facts", Static).update("\n".join(self.facts(answer)))

    def selected(self) -> KeyRow | None:
        """Return the selected key."""
        rows = [] if self.answer is None else self.rows(self.answer)
        selected = self.table.selected
        return next((row for row in rows if f"{row.controller}/{row.key}" == selected), None)

    def subject(self) -> Request | None:
        """See `LiveScreen.subject`."""
        row = self.selected()
        return None if row is None else Request(controller=row.controller, keys=[row.key])

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the selected key."""
        row = self.selected()
        if row is not None and event.row_key.value == f"{row.controller}/{row.key}":
            self.app.push_screen(KeyScreen(self.answers, row.controller, row.key))


class ControllerScreen(KeysScreen[ControllerState]):
    """The keys of a controller that need attention, are held, are ready, or are due next."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "open_key", "Open key")]

    def __init__(self, answers: Answers, controller: str) -> None:
        super().__init__(answers)
        self._controller = controller

    def heading(self) -> str:
        """See `LiveScreen.heading`."""
        return f"controller {self._controller}"

    async def read(self) -> ControllerState:
        """See `LiveScreen.read`."""
        return await self.answers.controller(self._controller)

    def partial(self, answer: ControllerState) -> Partial | None:
        """See `LiveScreen.partial`."""
        return None if answer.row is None else answer.row.partial

    def problem(self, answer: ControllerState) -> Problem | None:
        """See `LiveScreen.problem`."""
        return NO_DAEMON if answer.no_daemon else None

    def rows(self, answer: ControllerState) -> list[KeyRow]:
        """See `KeysScreen.rows`."""
        return keys_of(answer)

    def facts(self, answer: ControllerState) -> list[str]:
        """See `KeysScreen.facts`."""
        return facts_of(answer)

    def subject(self) -> Request | None:
        """See `LiveScreen.subject`: the selected key; the controller if it has no key."""
        return super().subject() or Request(controller=self._controller, everything=True)

    def action_open_key(self) -> None:
        """Open a key by its name."""
        ask_for_key(self, self._controller)


class FailureScreen(KeysScreen[Home], OverviewScreen):
    """The keys that fail with the same message."""

    headings = ("KEY", "STATE", "CONTROLLER")

    def __init__(self, answers: Answers, message: str) -> None:
        super().__init__(answers)
        self._message = message

    def heading(self) -> str:
        """See `LiveScreen.heading`."""
        return f"keys that fail with {first_line(self._message)}"

    def rows(self, answer: Home) -> list[KeyRow]:
        """See `KeysScreen.rows`."""
        return [
            KeyRow(key.controller, key.key, "failing", key.controller)
            for group in answer.failing
            if group.message == self._message
            for key in group.keys
        ]

    def facts(self, answer: Home) -> list[str]:
        """See `KeysScreen.facts`."""
        count = sum(group.count for group in answer.failing if group.message == self._message)
        unlisted = count - len(self.rows(answer))
        return [f"and {unlisted} more keys"] if unlisted else []
