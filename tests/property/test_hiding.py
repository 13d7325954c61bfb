"""However a text is cut, and whatever is around a secret, nothing of it is shown."""

from hypothesis import given
from hypothesis import strategies as st

from natsctl.telemetry.hiding import Hider

HELD = "correct-horse-battery-staple"
SECRETS = [
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.dGhlIHNpZ25hdHVyZQ",
    "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
    HELD,
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
        "\n",
        "é",
    ]
)
TEXTS = st.lists(PARTS, max_size=60).map("".join)
EDGES = st.sampled_from([" ", '"', "\n", "(", ","])
QUOTED = st.tuples(EDGES, st.sampled_from(SECRETS), EDGES).map("".join)


@given(TEXTS, QUOTED, TEXTS, st.integers(1, 200))
def test_nothing_of_a_secret_is_shown(before: str, quoted: str, after: str, limit: int) -> None:
    shown = Hider([HELD])(before + quoted + after, limit=limit)
    secret = quoted[1:-1]
    assert not any(secret[at : at + 8] in shown for at in range(len(secret) - 8))


@given(TEXTS, st.integers(1, 400))
def test_a_text_is_hidden_alike_whether_it_is_cut_or_not(text: str, limit: int) -> None:
    hide = Hider([HELD])
    whole, (shown, *_) = hide(text), hide(text, limit=limit).split("… (")
    assert whole.startswith(shown.rstrip("*"))


@given(TEXTS)
def test_what_is_hidden_stays_as_it_is_when_it_is_hidden_again(text: str) -> None:
    hide = Hider([HELD])
    assert hide(hide(text)) == hide(text)
