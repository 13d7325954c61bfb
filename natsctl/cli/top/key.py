"""Shows the explanation of one key, and the tree of its objects."""

from datetime import UTC, datetime
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer
from textual.widgets import Static

from natsctl.cli.output.explanations import TREE_HEADINGS, explanation_lines, tree_rows
from natsctl.cli.output.printing import table_lines
from natsctl.cli.top.answers import Answers, KeyState
from natsctl.cli.top.cells import refusal
from natsctl.cli.top.live import LiveScreen
from natsctl.console.actions import Request
from natsctl.console.answers import Problem
from natsctl.telemetry.escaping import escaped


class Scroll(ScrollableContainer):
    """A text that scrolls, with the keys of vi."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "Down", show=False),
        Binding("k", "scroll_up", "Up", show=False),
        Binding("g", "scroll_home", "First", show=False),
        Binding("G", "scroll_end", "Last", show=False),
    ]


class KeyScreen(LiveScreen[KeyState]):
    """The view of one key: the lines of `natsctl explain` and `natsctl tree`."""

    main = "#scroll"

    def __init__(self, answers: Answers, controller: str, key: str) -> None:
        super().__init__(answers)
        self._controller, self._key = controller, key

    def heading(self) -> str:
        """See `LiveScreen.heading`."""
        return f"{self._key} of {self._controller}"

    def body(self) -> ComposeResult:
        """See `LiveScreen.body`."""
        with Scroll(id="scroll"):
            yield Static(id="lines", markup=False)

    async def read(self) -> KeyState:
        """See `LiveScreen.read`."""
        return await self.answers.key(self._controller, self._key)

    def show(self, answer: KeyState) -> None:
        """See `LiveScreen.show`."""
        now = datetime.now(UTC)
        lines = [
            line
            for explanation in answer.explanations
            for line in (*explanation_lines(explanation, now), "")
        ]
        if isinstance(answer.tree, Problem):
            lines.append(escaped(refusal(answer.tree)))
        else:
            lines += table_lines(TREE_HEADINGS, tree_rows(answer.tree, now))
        pattern = self.pattern.lower()
        shown = [line for line in lines if pattern in line.lower()]
        self.query_one("#lines", Static).update("\n".join(shown))

    def subject(self) -> Request:
        """See `LiveScreen.subject`."""
        return Request(controller=self._controller, keys=[self._key])
