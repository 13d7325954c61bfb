"""Property tests of hiding: no part of a secret is shown, in any context and at any length."""

from hypothesis import given
from hypothesis import strategies as st

from natsctl.telemetry.hiding import Hider

KNOWN_SECRET = "correct-horse-battery-staple"
SECRETS = [
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.dGhlIHNpZ25hdHVyZQ",
    "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
    KNOWN_SECRET,
]
PARTS = st.sampled_from(
    [
        "a",
        " ",
        "-",
        ".",
        "*",
        "://",
        "@",
        ":",
        "eyJ",
        "eyJ-",
        "aaaaaaaaa",
        "SU",
        "bearer ",
        "BASIC ",
        "\n",
        "é",
    ]
)
TEXTS = st.lists(PARTS, max_size=60).map("".join)
EDGES = st.sampled_from([" ", '"', "\n", "(", ","])
QUOTED = st.tuples(EDGES, st.sampled_from(SECRETS), EDGES).map("".join)


@given(TEXTS, QUOTED, TEXTS, st.integers(1, 200))
def test_no_part_of_a_secret_is_shown(before: str, quoted: str, after: str, limit: int) -> None:
    shown = Hider([KNOWN_SECRET])(before + quoted + after, limit=limit)
    secret = quoted[1:-1]
    assert not any(secret[start : start + 8] in shown for start in range(len(secret) - 8))


@given(TEXTS, st.integers(1, 400))
def test_truncation_does_not_change_the_hidden_parts(text: str, limit: int) -> None:
    hide = Hider([KNOWN_SECRET])
    full_text, (shown, *_) = hide(text), hide(text, limit=limit).split("… (")
    assert full_text.startswith(shown.rstrip("*"))


@given(TEXTS)
def test_hiding_is_idempotent(text: str) -> None:
    hide = Hider([KNOWN_SECRET])
    assert hide(hide(text)) == hide(text)


@given(st.lists(PARTS, max_size=12).map("".join))
def test_a_short_text_is_hidden_like_the_beginning_of_a_long_one(text: str) -> None:
    ending = "\n" + "(" * 60
    hide = Hider()
    assert hide(text) + ending == hide(text + ending)
