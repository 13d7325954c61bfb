"""A repeated message is due at most once in a quiet period."""

from natsctl.telemetry.repeats import Repeats


def test_a_message_is_due_once_per_quiet_period() -> None:
    now = [0.0]
    repeats = Repeats(lambda: now[0], quiet_s=30)
    assert repeats.due("lost")
    assert repeats.due("found")
    now[0] = 29.9
    assert not repeats.due("lost")
    now[0] = 30
    assert repeats.due("lost")
    assert not repeats.due("lost")


def test_the_number_of_remembered_messages_is_bounded() -> None:
    repeats = Repeats(lambda: 0.0)
    assert all(repeats.due(str(number)) for number in range(10_000))
    assert repeats.due("0")
