"""The texts in the tables of `natsctl top`."""

import pytest
from msgspec.structs import replace

from natsctl.cli.top.answers import ControllerState
from natsctl.cli.top.cells import bars, controller_cells, facts_of, keys_of, state_of
from natsctl.console.answers import Partial, Problem
from natsctl.console.statuses import StatusRow
from natsctl.model.pause import Pause
from tests.support.cli.fake_answers import CONNECTED, KEYS, SHOPS


def cells(row: StatusRow, *, wide: bool = False) -> list[str]:
    return [cell.plain for cell in controller_cells(row, wide=wide)]


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ([], ""),
        ([0, 0], "··"),
        ([0, 1, 8], "·▁█"),
        ([5] * 60, "█" * 12),
        ([0] * 55 + [9] * 5, "·" * 11 + "█"),
        ([1_000_000, 1], "█▁"),
    ],
)
def test_counts_are_shown_as_bars(counts: list[int], shown: str) -> None:
    assert bars(counts) == shown


def test_a_wide_row_has_the_last_syncs_and_errors() -> None:
    assert cells(SHOPS, wide=True)[-2:] == ["·▄█", "··█"]


def test_an_older_daemon_has_no_bars_and_no_oldest_change() -> None:
    row = replace(SHOPS, activity=None, oldest_unanswered_s=None)
    assert cells(row, wide=True)[-3:] == ["-", "-", "-"]


def test_several_daemons_that_sync_the_same_keys_are_marked_without_colours() -> None:
    row = replace(SHOPS, mode="alone \N{MULTIPLICATION SIGN}2", conflict="both sync every key")
    assert cells(row)[2] == "alone \N{MULTIPLICATION SIGN}2 !"
    assert "both sync every key" in facts_of(ControllerState(row, {}))


def test_a_controller_whose_daemons_are_silent_has_no_numbers() -> None:
    row = StatusRow(name="shops", error=Problem("timeout", "there was no answer in time"))
    assert cells(row) == ["shops", "no answer", "-", "-", "-", "-", "-", "-", "-"]


def test_a_paused_controller_has_all_keys_paused() -> None:
    row = replace(SHOPS, paused_whole=Pause(reason="the disk is full"))
    assert cells(row)[6] == "all"
    assert any("the disk is full" in fact for fact in facts_of(ControllerState(row, {})))


def test_control_characters_of_names_are_escaped() -> None:
    assert cells(replace(SHOPS, name="sh\x1b[31mops\u202e"))[0] == "sh\\x1b[31mops\\u202e"


def test_a_long_name_is_shortened_on_a_narrow_terminal() -> None:
    row = replace(SHOPS, name="x" * 40)
    assert cells(row)[0] == "x" * 19 + "…"
    assert cells(row, wide=True)[0] == "x" * 40


def test_the_keys_of_a_controller_are_those_with_a_problem_and_those_in_its_queue() -> None:
    keys = keys_of(ControllerState(SHOPS, KEYS))
    assert [(row.key, row.state, row.reason) for row in keys] == [
        ("bad", "failing, due in 8s", "ValueError: no luck"),
        ("odd", "invalid", "not a valid Shop"),
        ("slow", "held for 40s", "change"),
    ]


def test_a_controller_that_no_daemon_runs_has_no_keys() -> None:
    idle = ControllerState(None, {})
    assert keys_of(idle) == []
    assert facts_of(idle) == ["no daemon runs the controller now"]


def test_keys_that_the_daemon_does_not_name_are_counted() -> None:
    state = ControllerState(replace(SHOPS, failing=200), KEYS)
    assert facts_of(state)[-1] == "and 199 more keys need attention"


def test_the_state_names_the_daemons_that_do_not_answer() -> None:
    state = state_of(CONNECTED, None, Partial(3, 4, ["h/9"]), 0.0)
    assert state.plain == "3 of 4 daemons answered; no answer from h/9"


def test_the_state_of_a_refused_request_names_the_permission() -> None:
    problem = Problem("refused", "this NATS user may not publish to $SRV.INFO.natsctl")
    state = state_of(CONNECTED, problem, None, 0.0)
    assert state.plain == "refused: this NATS user may not publish to $SRV.INFO.natsctl"
