"""The base of the views: reads an answer again and again, and states how current it is."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from natsctl.cli.top.answers import Answers
from natsctl.cli.top.cells import matches, refusal, state_of, text
from natsctl.cli.top.dialogs import Confirmation, Help
from natsctl.cli.top.table import Rows
from natsctl.console.actions import ActionReport, Request
from natsctl.console.answers import Partial, Problem, problem_of
from natsctl.console.home import Home
from natsctl.errors import NatsctlError

INTERVAL_S = 1.0  # between two reads; a view is drawn again at most four times a second
MESSAGE_S = 10.0  # for which the result of an action is shown
NO_DAEMON = Problem("no_daemon", "no daemon answers: start one with natsctl run")

T = TypeVar("T")


class LiveScreen(Screen[None], Generic[T]):
    """A view of an answer that is read every `INTERVAL_S` while the view is on top."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("r", "resync", "Resync"),
        Binding("p", "pause", "Pause/resume"),
        Binding("escape", "back", "Back"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "app.quit", "Quit"),
    ]
    AUTO_FOCUS = ""
    main: ClassVar[str]
    """The selector of the widget that has the focus at first."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self.answers = answers
        self.answer: T | None = None
        self._problem: Problem | None = None
        self._state: object = None  # the text and the style that are shown
        self._on_top = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._read_at = self._message_at = self._clock()

    @abstractmethod
    def heading(self) -> str:
        """Return the title of the view."""

    @abstractmethod
    async def read(self) -> T:
        """Return a new answer."""

    @abstractmethod
    def show(self, answer: T) -> None:
        """Show an answer, with the rows that contain the filter."""

    @abstractmethod
    def body(self) -> ComposeResult:
        """Return the widgets between the title and the message."""

    @abstractmethod
    def subject(self) -> Request | None:
        """Return the controller or the key that is selected; None if nothing is."""

    def partial(self, answer: T) -> Partial | None:  # noqa: ARG002 - some answers have one
        """Return which daemons did not answer; None if all did."""
        return None

    def problem(self, answer: T) -> Problem | None:  # noqa: ARG002 - some answers have one
        """Return why an answer shows nothing; None if it shows something."""
        return None

    def compose(self) -> ComposeResult:
        """Show the title, the state, the body, the message and the keys."""
        yield Static(id="title", markup=False)
        yield Static("reading…", id="state", markup=False)
        yield from self.body()
        yield Input(id="filter", placeholder="show only rows with this text", compact=True)
        yield Static(id="message", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one("#filter").display = False
        self.query_one("#title", Static).update(text(self.heading()))
        self.focus_body()
        self.run_worker(self._follow(), name="reads")
        self.run_worker(self._show_read_state(), name="state")

    def on_screen_resume(self) -> None:
        """Read while the view is on top."""
        self._on_top.set()

    def on_screen_suspend(self) -> None:
        """Do not read while another view is on top."""
        self._on_top.clear()

    async def _follow(self) -> None:
        while True:
            await self._on_top.wait()
            await self.refresh_answer()
            await asyncio.sleep(INTERVAL_S)

    async def refresh_answer(self) -> None:
        """Read the answer once; keep the last one if that fails."""
        try:
            answer = await self.read()
        except (NatsctlError, TimeoutError) as error:
            self._problem = problem_of(error)
        else:
            if self.answers.connection().connected:  # or else daemons seem not to answer
                self.answer, self._problem, self._read_at = answer, None, self._clock()
                self.show(answer)
        self._show_state()

    async def _show_read_state(self) -> None:
        """Show the state while a read takes long, and remove an old message."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            if self._clock() - self._read_at > 2 * INTERVAL_S:
                self._show_state()
            if self._clock() - self._message_at > MESSAGE_S:
                self.query_one("#message", Static).update("")

    def _show_state(self) -> None:
        problem, partial = self._problem, None
        if self.answer is not None:
            problem, partial = problem or self.problem(self.answer), self.partial(self.answer)
        stale_s = self._clock() - self._read_at
        state = state_of(self.answers.connection(), problem, partial, stale_s)
        if (state.plain, state.style) != self._state:
            self._state = state.plain, state.style
            self.query_one("#state", Static).update(state)

    def message(self, content: str) -> None:
        """Show the result of an action, for a few seconds."""
        self._message_at = self._clock()
        self.query_one("#message", Static).update(text(content))

    # ---- the filter

    def filtered(self, rows: Rows) -> Rows:
        """Return the rows that contain the filter."""
        pattern = self.pattern
        return {key: cells for key, cells in rows.items() if matches(cells, pattern)}

    @property
    def pattern(self) -> str:
        """The text that rows must contain; empty for all rows."""
        return self.query_one("#filter", Input).value.strip()

    def action_filter(self) -> None:
        """Let the user type a filter."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self) -> None:
        """Show the rows that contain the filter."""
        if self.answer is not None:
            self.show(self.answer)

    def on_input_submitted(self) -> None:
        """Keep the filter, and return to the rows."""
        self._leave_filter()

    def action_back(self) -> None:
        """Remove the filter, or else close the view."""
        field = self.query_one("#filter", Input)
        if field.display or field.value:
            field.value = ""
            self._leave_filter()
        elif len(self.app.screen_stack) > 2:  # noqa: PLR2004 - the empty screen and the first view
            self.app.pop_screen()

    def _leave_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = bool(field.value)
        self.focus_body()

    def focus_body(self) -> None:
        """Move the focus to the main widget."""
        self.query_one(self.main).focus()

    # ---- actions

    def action_help(self) -> None:
        """Show the help."""
        self.app.push_screen(Help())

    def action_resync(self) -> None:
        """Resync the selected controller, after a question, or the selected key."""
        subject = self.subject()
        if subject is None:
            self.message("select a controller or a key")
        elif subject.keys:
            self._act("resync", subject)
        else:
            self._ask(f"Sync all keys of {subject.controller}?", "resync", subject)

    def action_pause(self) -> None:
        """Pause or resume the selected controller or key, after a question."""
        subject = self.subject()
        if subject is None:
            self.message("select a controller or a key")
        else:
            self.run_worker(self._ask_for_pause(subject))

    async def _ask_for_pause(self, subject: Request) -> None:
        try:
            action = "resume" if await self._paused(subject) else "pause"
        except (NatsctlError, TimeoutError) as error:
            self.message(refusal(problem_of(error)))
            return
        name = f"{subject.keys[0]} of {subject.controller}" if subject.keys else subject.controller
        self._ask(f"{action.title()} {name}?", action, subject)

    async def _paused(self, subject: Request) -> bool:
        """Return whether the key, or the whole controller, is paused."""
        if subject.keys:
            state = await self.answers.key(subject.controller, subject.keys[0])
            pauses = [explanation.paused for explanation in state.explanations]
            return any(pause is not None and not pause.controller for pause in pauses)
        rows = (await self.answers.home()).controllers
        return any(row.name == subject.controller and row.paused_whole for row in rows)

    def _ask(self, question: str, action: str, subject: Request) -> None:
        def answered(confirmed: bool | None) -> None:  # noqa: FBT001 - Textual calls it
            if confirmed:
                self._act(action, subject)

        self.app.push_screen(Confirmation(text(question).plain), answered)

    def _act(self, action: str, subject: Request) -> None:
        self.run_worker(self._show_result(self.answers.act(action, subject), action))

    async def _show_result(self, work: Awaitable[ActionReport], action: str) -> None:
        """Show the result of an action, and read the view again."""
        self.message(f"{action}…")
        try:
            report = await work
        except (NatsctlError, TimeoutError) as error:
            self.message(refusal(problem_of(error)))
            return
        self.message("; ".join([report.message, *report.warnings]))
        await self.refresh_answer()


class OverviewScreen(LiveScreen[Home]):
    """A view of a part of the state of all controllers."""

    async def read(self) -> Home:
        """See `LiveScreen.read`."""
        return await self.answers.home()

    def partial(self, answer: Home) -> Partial | None:
        """See `LiveScreen.partial`."""
        return answer.partial

    def problem(self, answer: Home) -> Problem | None:
        """See `LiveScreen.problem`."""
        return NO_DAEMON if answer.no_daemon else None
