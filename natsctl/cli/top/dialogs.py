"""Asks for a confirmation or a text, and shows the help."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

HELP = """\
Enter    open the selected row
Esc      go back, or remove the filter
/        show only rows that contain a text
o        open a key by its name
Tab      go to the next table
j k      move down and up; g and G go to the first and the last row
r        resync the selected controller or key
p        pause or resume the selected controller or key
?        this help
q        quit

The view is read every second. OLDEST is the time since the first
change that no sync has answered. A terminal of 100 columns also
shows SYNCS and ERRORS, which cover the last 15 minutes. An
exclamation mark after MODE means that several daemons sync the
same keys."""


class Confirmation(ModalScreen[bool]):
    """A question; `y` answers yes, `n` and Esc answer no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "Yes"),
        ("n", "answer(False)", "No"),
        ("escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question."""
        with Vertical(classes="dialog"):
            yield Static(f"{self._question}  (y/n)", id="question", markup=False)

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001 - Textual passes it
        """Close the question with this answer."""
        self.dismiss(answer)


class Question(ModalScreen[str]):
    """A question for a text; an empty text if the user gives none."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "cancel", "Cancel")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question and a field."""
        with Vertical(classes="dialog"):
            yield Static(self._question, id="question", markup=False)
            yield Input(id="answer", compact=True)

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        """Close the question with the text."""
        self.dismiss(submitted.value.strip())

    def action_cancel(self) -> None:
        """Close the question without a text."""
        self.dismiss("")


class Help(ModalScreen[None]):
    """The keys of the keyboard."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss", "Back"),
        ("question_mark", "dismiss", "Back"),
        ("q", "dismiss", "Back"),
    ]

    def compose(self) -> ComposeResult:
        """Show the help."""
        with Vertical(classes="dialog"):
            yield Static(HELP, id="help", markup=False)
