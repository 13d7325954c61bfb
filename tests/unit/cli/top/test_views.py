"""The views of `natsctl top`, on a terminal of 80 columns and 24 lines without a screen."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Static

from natsctl.cli.top.app import TopApp
from natsctl.cli.top.live import INTERVAL_S, MESSAGE_S
from natsctl.cli.top.table import LiveTable
from natsctl.console.answers import Problem
from natsctl.core.insight.explain import KeyPause
from natsctl.errors import NatsctlError, PermissionDeniedError
from natsctl.model.pause import Pause
from tests.support.cli.fake_answers import FAILING, SHOPS, FakeAnswers, home_of


@pytest.fixture(autouse=True)
def _pauses_are_virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pause for a virtual time after a key; Textual pauses until the processor is idle."""

    async def pause(*_: float) -> None:
        await asyncio.sleep(0.1)

    monkeypatch.setattr("textual.pilot.wait_for_idle", pause)
    monkeypatch.setattr("textual.app.wait_for_idle", pause)


class Terminal:
    """A user of the program."""

    def __init__(self, pilot: Pilot[None], answers: FakeAnswers) -> None:
        self.pilot = pilot
        self.answers = answers

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def open_key(self) -> None:
        """Open the first controller, and its first key."""
        for _ in range(2):
            await self.press("enter")
            await self.wait()

    async def wait(self, seconds: float = 2 * INTERVAL_S) -> None:
        await asyncio.sleep(seconds)
        await self.pilot.pause()

    def text(self, name: str) -> str:
        return str(self.pilot.app.screen.query_one(f"#{name}", Static).visual)

    def table(self, name: str) -> LiveTable:
        return self.pilot.app.screen.query_one(f"#{name}", LiveTable)

    def rows(self, name: str) -> list[list[str]]:
        table = self.table(name)
        return [[cell.plain for cell in table.get_row_at(row)] for row in range(table.row_count)]

    @property
    def view(self) -> str:
        return type(self.pilot.app.screen).__name__


@asynccontextmanager
async def using(
    answers: FakeAnswers | None = None, *, columns: int = 80
) -> AsyncIterator[Terminal]:
    answers = FakeAnswers() if answers is None else answers
    async with TopApp(answers).run_test(size=(columns, 24)) as pilot:
        terminal = Terminal(pilot, answers)
        await terminal.wait()
        yield terminal


async def test_the_first_view_has_a_row_per_controller() -> None:
    async with using() as terminal:
        assert terminal.rows("controllers") == [
            ["shops", "syncing", "leader", "9", "2", "1", "0", "4", "1m15s"]
        ]
        assert terminal.text("state") == "live from nats://127.0.0.1:4222"


async def test_a_terminal_that_becomes_wider_shows_more_columns() -> None:
    async with using() as terminal:
        await terminal.pilot.resize_terminal(120, 24)
        await terminal.wait()
        assert len(terminal.rows("controllers")[0]) == 11


async def test_every_row_of_a_narrow_terminal_fits() -> None:
    async with using() as terminal:
        assert terminal.table("controllers").virtual_size.width <= 80


async def test_failing_keys_are_grouped_by_message() -> None:
    async with using() as terminal:
        assert terminal.rows("failures") == [["2", "shops", "ValueError: no luck"]]


async def test_enter_opens_a_controller_then_a_key_and_escape_goes_back() -> None:
    async with using() as terminal:
        await terminal.press("enter")
        await terminal.wait()
        assert terminal.view == "ControllerScreen"
        assert terminal.rows("keys") == [
            ["bad", "failing, due in 8s", "ValueError: no luck"],
            ["odd", "invalid", "not a valid Shop"],
            ["slow", "held for 40s", "change"],
        ]
        await terminal.press("enter")
        await terminal.wait()
        assert terminal.text("title") == "bad of shops"
        assert "bad of shops, in h/7" in terminal.text("lines")
        assert "└─Sign.signs/bad" in terminal.text("lines")
        await terminal.press("escape")
        assert terminal.view == "ControllerScreen"
        await terminal.press("escape", "escape")
        assert terminal.view == "HomeScreen"


async def test_a_key_without_a_tree_shows_its_explanation_and_the_reason() -> None:
    answers = FakeAnswers()
    answers.tree = Problem("invalid", "shops only plans: no daemon answers tree")
    async with using(answers) as terminal:
        await terminal.open_key()
        assert "bad of shops, in h/7" in terminal.text("lines")
        assert terminal.text("lines").endswith("shops only plans: no daemon answers tree")


async def test_enter_opens_the_keys_of_a_message() -> None:
    async with using() as terminal:
        await terminal.press("tab", "enter")
        await terminal.wait()
        assert terminal.view == "FailureScreen"
        assert terminal.rows("keys") == [["bad", "failing", "shops"], ["odd", "failing", "shops"]]
        await terminal.press("j", "enter")
        await terminal.wait()
        assert terminal.text("title") == "odd of shops"


async def test_a_message_with_many_keys_counts_those_that_it_does_not_list() -> None:
    failure = replace(FAILING, count=100)
    async with using(FakeAnswers(home_of(SHOPS, failing=[failure]))) as terminal:
        await terminal.press("tab", "enter")
        await terminal.wait()
        assert terminal.text("facts") == "and 98 more keys"


async def test_o_opens_a_key_by_its_name() -> None:
    async with using() as terminal:
        await terminal.press("o", *"quiet", "enter")
        await terminal.wait()
        assert terminal.text("title") == "quiet of shops"


async def test_a_filter_shows_only_rows_with_its_text_until_escape() -> None:
    rows = [replace(SHOPS, name=name) for name in ("shops", "markets", "fairs")]
    async with using(FakeAnswers(home_of(*rows))) as terminal:
        await terminal.press("slash", *"ARKET", "enter")
        assert [row[0] for row in terminal.rows("controllers")] == ["markets"]
        await terminal.wait()
        assert [row[0] for row in terminal.rows("controllers")] == ["markets"]
        await terminal.press("escape")
        assert [row[0] for row in terminal.rows("controllers")] == ["shops", "markets", "fairs"]


async def test_a_filter_of_a_key_shows_only_lines_with_its_text() -> None:
    async with using() as terminal:
        await terminal.open_key()
        await terminal.press("slash", *"sign", "enter")
        assert terminal.text("lines").split() == ["└─Sign.signs/bad", "-", "-", "-", "-"]


async def test_letters_in_a_filter_are_no_commands() -> None:
    async with using() as terminal:
        await terminal.press("slash", *"qrp")
        assert terminal.answers.acts == []
        assert terminal.view == "HomeScreen"


async def test_r_resyncs_the_selected_key() -> None:
    async with using() as terminal:
        await terminal.press("enter")
        await terminal.wait()
        await terminal.press("j", "r")
        [(action, request)] = terminal.answers.acts
        assert (action, request.controller, request.keys) == ("resync", "shops", ["odd"])
        assert terminal.text("message") == "resync done"


@pytest.mark.parametrize(("answer", "acts"), [("y", 1), ("n", 0), ("escape", 0)])
async def test_a_resync_of_all_keys_needs_a_confirmation(answer: str, acts: int) -> None:
    async with using() as terminal:
        await terminal.press("r")
        assert "Sync all keys of shops?" in terminal.text("question")
        await terminal.press(answer)
        assert len(terminal.answers.acts) == acts


async def test_p_pauses_a_key_after_a_confirmation() -> None:
    async with using() as terminal:
        await terminal.open_key()
        await terminal.press("p")
        assert "Pause bad of shops?" in terminal.text("question")
        await terminal.press("y")
        assert [action for action, _ in terminal.answers.acts] == ["pause"]


async def test_p_resumes_a_paused_key() -> None:
    answers = FakeAnswers()
    answers.pause = KeyPause(since="2026-01-01T00:00:00Z")
    async with using(answers) as terminal:
        await terminal.open_key()
        await terminal.press("p", "y")
        assert [action for action, _ in answers.acts] == ["resume"]


@pytest.mark.parametrize(("pause", "action"), [(None, "pause"), (Pause(), "resume")])
async def test_p_pauses_or_resumes_a_whole_controller(pause: Pause | None, action: str) -> None:
    async with using(FakeAnswers(home_of(replace(SHOPS, paused_whole=pause)))) as terminal:
        await terminal.press("p", "y")
        [(done, request)] = terminal.answers.acts
        assert (done, request.everything, request.keys) == (action, True, [])


async def test_an_action_that_is_refused_names_the_reason() -> None:
    answers = FakeAnswers()
    answers.refusal = PermissionDeniedError("this NATS user may not publish to natsctl.api.resync")
    async with using(answers) as terminal:
        await terminal.press("r", "y")
        assert terminal.text("message") == (
            "refused: this NATS user may not publish to natsctl.api.resync"
        )


async def test_without_a_daemon_the_view_states_how_to_start_one() -> None:
    async with using(FakeAnswers(home_of(no_daemon=True))) as terminal:
        assert terminal.text("state") == "no daemon answers: start one with natsctl run"
        terminal.answers.overview = home_of(SHOPS)
        await terminal.wait()
        assert terminal.text("state").startswith("live")


async def test_a_lost_connection_shows_since_when_the_rows_are_stale() -> None:
    async with using() as terminal:
        terminal.answers.state = replace(
            terminal.answers.state, connected=False, last_error="connection refused"
        )
        terminal.answers.error = NatsctlError("not connected")
        await terminal.wait(12)
        state = terminal.text("state")
        assert state.startswith("no update for 1")
        assert state.endswith("s, reconnecting: connection refused")
        assert terminal.rows("controllers")[0][0] == "shops"


async def test_an_answer_without_a_connection_does_not_replace_the_rows() -> None:
    async with using() as terminal:
        terminal.answers.state = replace(terminal.answers.state, connected=False)
        terminal.answers.overview = home_of(no_daemon=True)
        await terminal.wait(12)
        assert terminal.rows("controllers")[0][0] == "shops"
        assert terminal.text("state").startswith("no update for 1")


async def test_the_result_of_an_action_is_shown_for_a_few_seconds() -> None:
    async with using() as terminal:
        await terminal.press("r", "y")
        assert terminal.text("message") == "resync done"
        await terminal.wait(MESSAGE_S + 2)
        assert terminal.text("message") == ""


async def test_a_read_that_waits_for_the_connection_shows_the_loss() -> None:
    async with using() as terminal:
        terminal.answers.state = replace(terminal.answers.state, connected=False)
        terminal.answers.takes_s = 1e6
        await terminal.wait(5)
        assert "reconnecting" in terminal.text("state")


async def test_a_view_reads_again_after_the_connection_came_back() -> None:
    async with using() as terminal:
        terminal.answers.error = NatsctlError("not connected")
        await terminal.wait(3)
        assert terminal.text("state") == "not connected"
        terminal.answers.error = None
        await terminal.wait()
        assert terminal.text("state").startswith("live")


async def test_the_selection_stays_on_its_row_if_rows_come_and_go() -> None:
    rows = [replace(SHOPS, name=name) for name in ("b", "c", "d")]
    async with using(FakeAnswers(home_of(*rows))) as terminal:
        await terminal.press("j")
        terminal.answers.overview = home_of(replace(SHOPS, name="a"), *rows)
        await terminal.wait()
        assert terminal.table("controllers").selected == "c"


async def test_answers_that_change_all_the_time_are_read_at_most_four_times_a_second() -> None:
    async with using() as terminal:
        before = terminal.answers.reads
        for number in range(100):
            terminal.answers.overview = home_of(replace(SHOPS, keys=number))
            await asyncio.sleep(0.1)
        assert terminal.answers.reads - before <= 4 * 10


async def test_a_view_under_another_one_is_not_read() -> None:
    async with using() as terminal:
        await terminal.press("question_mark")
        await terminal.wait()
        before = terminal.answers.reads
        await terminal.wait(10)
        assert terminal.answers.reads == before


async def test_the_help_lists_the_keys_of_the_keyboard() -> None:
    async with using() as terminal:
        await terminal.press("question_mark")
        assert "r        resync" in terminal.text("help")
        await terminal.press("escape")
        assert terminal.view == "HomeScreen"


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_q_and_control_c_quit(key: str) -> None:
    async with using() as terminal:
        await terminal.press(key)
        assert terminal.pilot.app.return_code == 0


async def test_without_colours_the_cursor_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with using() as terminal:
        strip = terminal.table("controllers").render_line(1)
        styles = [segment.style for segment in strip if segment.style is not None]
        assert any(style.reverse for style in styles)
