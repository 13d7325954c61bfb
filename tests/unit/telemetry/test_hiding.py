"""What somebody holds is hidden from everybody, for as long as he holds it."""

import pytest

from natsctl.telemetry.hiding import Hider, Secrets, hidden, told


def test_what_is_held_is_hidden_by_everybody_until_it_is_let_go() -> None:
    hide = Hider(["known"])
    with Secrets(["correct horse"]) as secrets:
        secrets.keep("battery")
        assert hide("known: correct horse, battery") == "***: ***, ***"
        assert hidden("known: correct horse, battery") == "known: ***, ***"
    assert hidden("correct horse, battery") == "correct horse, battery"


def test_a_secret_that_two_hold_is_hidden_until_both_let_go() -> None:
    with Secrets(["correct horse"]):
        with Secrets(["correct horse"]):
            pass
        assert hidden("correct horse") == "***"
    assert hidden("correct horse") == "correct horse"


def test_nothing_is_no_secret() -> None:
    with Secrets(["", " "]) as secrets:
        secrets.keep("")
        assert hidden("a b") == "a b"


def test_the_newest_of_many_are_kept() -> None:
    with Secrets() as secrets:
        for number in range(1000):
            secrets.keep(f"token-number-{number}")
        assert len(secrets.texts) < 100
        assert hidden("token-number-999") == "***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Bearer part.of.it", "Bearer ***"),
        ("nats://ann:part@hub", "nats://***@hub"),
        ("eyJhbGciOiJIUzI1NiJ9.part.dGhl", "***"),
    ],
)
def test_a_secret_within_what_looks_like_one_leaves_nothing_of_it(text: str, shown: str) -> None:
    with Secrets(["part"]):
        assert hidden(text) == shown


def test_an_error_is_told_by_its_type_and_text_without_secrets() -> None:
    assert told(ValueError("at nats://ann:hush@hub")) == "ValueError: at nats://***@hub"
