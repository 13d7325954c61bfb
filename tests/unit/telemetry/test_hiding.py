"""What somebody holds is hidden from everybody, for as long as he holds it."""

import time

import pytest

from natsctl.telemetry.hiding import TEXT_MAX, TOLD_MAX, Hider, Secrets, brief, hidden, told

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.dGhlIHNpZ25hdHVyZQ"
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
KEY = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0\n" * 50
HOSTILE = [
    *("eyJ-aaaaaaaa-", "eyJaaaaaaaaa-", "eyJ", "eyJaaaaaaaa.", "-eyJ-eyJ.", "a://", "://a:b"),
    *("://a@", "a", "-", ".", "a.", "bearer ", "bearer aaaaa ", SEED, "SA", "PRIVATE KEY "),
    *("-----BEGIN PRIVATE KEY", "-----BEGIN A PRIVATE KEY----------END ", "correct hors"),
]


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


@pytest.mark.parametrize("piece", HOSTILE)
def test_eight_times_the_text_takes_about_eight_times_as_long(piece: str) -> None:
    hide = Hider(["correct horse"])
    text = piece * (1_000_000 // len(piece) + 1)

    def spent_s(size: int, rounds_count: int) -> float:
        """Return the least processor time of a few rounds."""
        rounds = []
        for _ in range(rounds_count):
            begun = time.process_time()
            hide(text[:size], limit=size)
            rounds.append(time.process_time() - begun)
        return min(rounds)

    assert spent_s(1_000_000, 2) / spent_s(125_000, 4) < 24  # 64 if it were quadratic


@pytest.mark.parametrize("secret", [JWT, SEED, KEY, "nats://ann:hush-hush-hush@hub", "held secret"])
@pytest.mark.parametrize("shown", [1, 10, 25, 40])
def test_a_secret_at_the_cut_is_hidden_as_a_whole(secret: str, shown: int) -> None:
    before = "x " * 50
    with Secrets(["held secret"]):
        text = hidden(before + secret + " and more" * 1000, limit=len(before) + shown)
    for at in range(len("nats://"), len(secret) - 6):
        assert secret[at : at + 6] not in text.replace("PRIVATE KEY", "")


def test_a_url_that_is_longer_than_what_is_looked_at_is_hidden() -> None:
    assert "hush" not in hidden("nats://" + "hush" * 10_000 + "@hub", limit=100)


def test_a_long_text_is_its_beginning_and_how_much_was_left_out() -> None:
    assert hidden("a" * TEXT_MAX) == "a" * TEXT_MAX
    assert hidden("a " * TEXT_MAX) == "a " * (TEXT_MAX // 2) + f"… ({TEXT_MAX} more characters)"


def test_an_error_with_a_long_text_is_cut() -> None:
    assert len(told(ValueError("a" * 1_000_000))) < TOLD_MAX + 100


def test_a_value_is_quoted_briefly_and_without_secrets() -> None:
    assert brief("a'b") == repr("a'b")
    assert brief(f"token {JWT}") == "'token ***'"
    assert len(brief("a" * 130_000)) < 150


def test_a_secret_that_follows_another_without_a_space_is_hidden() -> None:
    assert hidden(f"{SEED}-{JWT}") == "***-***"
