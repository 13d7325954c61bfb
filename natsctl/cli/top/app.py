"""The program of `natsctl top`: its first view and its style."""

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from natsctl.cli.top.answers import Answers
from natsctl.cli.top.home import HomeScreen


class TopApp(App[None]):
    """Shows controllers and failing keys live, in the terminal's own colours."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True)
    ]
    CSS = """
    Screen { background: transparent; }
    #title { height: 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    #state, #message { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #message { height: auto; max-height: 3; }
    .heading { height: 1; text-style: bold; margin-top: 1; }
    LiveTable { height: auto; max-height: 60%; background: transparent; }
    #failures, #keys { height: 1fr; max-height: 100%; }
    #facts { height: auto; max-height: 5; }
    LiveTable > .datatable--cursor { text-style: none; }
    LiveTable:focus > .datatable--cursor { text-style: reverse; }
    #scroll { height: 1fr; }
    #lines { width: auto; text-wrap: nowrap; }
    #filter { height: 1; }
    ModalScreen { align: center middle; }
    .dialog { width: auto; max-width: 90%; height: auto; border: round; padding: 0 1; }
    .dialog Static { width: auto; max-width: 100%; }
    .dialog Input { width: 40; }
    """

    def __init__(self, answers: Answers) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._answers = answers

    def on_mount(self) -> None:
        """Show the first view."""
        self.push_screen(HomeScreen(self._answers))
