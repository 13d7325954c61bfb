"""Secrets are hidden in every text."""

import math
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsctl.telemetry.hiding import (
    ERROR_MAX,
    TEXT_MAX,
    Hider,
    Secrets,
    enumerated,
    error_text,
    hidden,
    quoted,
    shortened,
)

# ---- property tests of hiding: no part of a secret is shown, in any context and at any length

KNOWN_SECRET = "correct-horse-battery-staple"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.dGhlIHNpZ25hdHVyZQ"
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
SECRETS = [JWT, SEED, KNOWN_SECRET]
PARTS = st.sampled_from(
    [
        *("a", " ", "-", ".", "*", "://", "@", ":", "eyJ", "eyJ-", "aaaaaaaaa", "SU"),
        *("bearer ", "BASIC ", "\n", "é"),
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


# ---- secrets are hidden in every text, and long texts are cut

KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\nIIKz\n-----END EC PRIVATE KEY-----"
LONG_KEY = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0\n" * 50
HOSTILE = [
    *("eyJ-aaaaaaaa-", "eyJaaaaaaaaa-", "eyJ", "eyJaaaaaaaa.", "-eyJ-eyJ.", "a://", "://a:b"),
    *("://a@", "a", "-", ".", "a.", "bearer ", "bearer aaaaa ", SEED, "SA", "PRIVATE KEY "),
    *("token", "token=", 'api_key"', "x-", "x-a", "-token", "authorization: ", "authorization="),
    *("-----BEGIN PRIVATE KEY", "-----BEGIN A PRIVATE KEY----------END ", "correct hors"),
]


def test_a_registered_secret_is_hidden_everywhere_until_it_is_released() -> None:
    hide = Hider(["known"])
    with Secrets(["correct horse"]) as secrets:
        secrets.keep("battery")
        assert hide("known: correct horse, battery") == "***: ***, ***"
        assert hidden("known: correct horse, battery") == "known: ***, ***"
    assert hidden("correct horse, battery") == "correct horse, battery"


def test_a_secret_registered_twice_is_hidden_until_both_release_it() -> None:
    with Secrets(["correct horse"]):
        with Secrets(["correct horse"]):
            pass
        assert hidden("correct horse") == "***"
    assert hidden("correct horse") == "correct horse"


def test_empty_and_blank_texts_are_not_secrets() -> None:
    with Secrets(["", " "]) as secrets:
        secrets.keep("")
        assert hidden("a b") == "a b"


def test_only_the_newest_secrets_are_kept() -> None:
    with Secrets() as secrets:
        for number in range(200):
            secrets.keep(f"token-number-{number}")
        assert len(secrets.texts) < 100
        assert hidden("token-number-199") == "***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Bearer part.of.it", "Bearer ***"),
        ("nats://ann:part@hub", "nats://***@hub"),
        ("eyJhbGciOiJIUzI1NiJ9.part.dGhl", "***"),
    ],
)
def test_a_secret_within_a_credential_is_hidden_with_the_whole_credential(
    text: str, shown: str
) -> None:
    with Secrets(["part"]):
        assert hidden(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://ann:p@hub:4222 is down", "nats://***@hub:4222 is down"),
        ("tls://token@a,nats://u:p/w:x@b", "tls://***@a,nats://***@b"),
        ("nats://u:p@ss@hub", "nats://***@hub"),
        (f"the seed {SEED}.", "the seed ***."),
        (f"{SEED}-{JWT}", "***-***"),
        (f"creds\n{JWT}\n---", "creds\n***\n---"),
        (f"a {KEY} b", "a -----BEGIN *** b"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEv", "-----BEGIN ***"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("authorization: basic YW5uOnA=", "authorization: basic ***"),
        # a value with the name of a secret
        ("GET https://api/x?token=abc123&x=1", "GET https://api/x?token=***&x=1"),
        ("login(user='ann', password='abc123')", "login(user='ann', password='***')"),
        ('{"apiKey": "abc123", "name": "a"}', '{"apiKey": "***", "name": "a"}'),
        (r"{\"access_token\": \"abc123\"}", r"{\"access_token\": \"***\"}"),
        ("X-Api-Key: abc123", "X-Api-Key: ***"),
        ("PRIVATE-TOKEN: abc123", "PRIVATE-TOKEN: ***"),
        ("Authorization: Token abc123", "Authorization: Token ***"),
        *(
            (text, text)
            for text in (
                *("max_tokens=4096", "secretName=shop-tls", "cannot read secret: NotFound"),
                *("token = self.fetch()", "spec.token: expected a text", "Authorization Violation"),
                *("no authorization: denied by policy", "invalid key 'a..b': empty token"),
                "nats://hub:4222, tls://other and https://10.0.0.1:6443/api?a=b",
                "mail ann@example.com about SUN and SUNDAY",
                "sync of team-a.shop failed: the bearer of news",
                "-----BEGIN CERTIFICATE-----\nMIIB",
                "",
            )
        ),
    ],
)
def test_credentials_and_keys_are_hidden_by_their_form_and_name_and_other_text_is_shown(
    text: str, shown: str
) -> None:
    assert hidden(text) == Hider()(text) == shown


GROUP_TEXT = "ExceptionGroup: unhandled (3 sub-exceptions)"
INNER = ExceptionGroup("of disks", [KeyError("size"), OSError("nats://ann:hush@hub is away")])
GROUP = ExceptionGroup("unhandled", [ValueError("no name"), INNER, LookupError("the fourth")])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("at nats://ann:hush@hub"), "ValueError: at nats://***@hub"),
        (
            ValueError("a file \udcff of nats://ann:\udcff@desk"),  # which can't be encoded
            "ValueError: a file \ufffd of nats://***@desk",
        ),
        (MemoryError(), "MemoryError"),
        (
            GROUP,  # the first errors
            f"{GROUP_TEXT}: ValueError: no name; KeyError: 'size'; OSError: nats://***@hub is away",
        ),
    ],
    ids=["message", "surrogates", "no message", "group"],
)
def test_the_text_of_an_error_is_its_type_and_message_without_secrets(
    error: Exception, text: str
) -> None:
    assert error_text(error) == text


@pytest.mark.parametrize("repeated", HOSTILE)
def test_hiding_takes_time_in_proportion_to_the_length_of_the_text(repeated: str) -> None:
    hide = Hider(["correct horse"])
    text = repeated * (100_000 // len(repeated) + 1)
    least_s = dict.fromkeys((12_500, 100_000), math.inf)
    for _ in range(20):  # a busy machine makes some rounds slow
        for size in least_s:
            started = time.thread_time()
            hide(text[:size], limit=size)
            least_s[size] = min(least_s[size], time.thread_time() - started)
        if least_s[100_000] < 24 * least_s[12_500]:  # quadratic time would be 64 times as long
            return
    pytest.fail(f"the least times are {least_s}")


@pytest.mark.parametrize(
    "secret", [JWT, SEED, LONG_KEY, "nats://ann:hush-hush-hush@hub", "held secret"]
)
@pytest.mark.parametrize("shown", [1, 10, 25, 40])
def test_a_secret_at_the_cut_is_hidden_as_a_whole(secret: str, shown: int) -> None:
    before = "x " * 50
    with Secrets(["held secret"]):
        text = hidden(before + secret + " and more" * 1000, limit=len(before) + shown)
    for start in range(len("nats://"), len(secret) - 6):
        assert secret[start : start + 6] not in text.replace("PRIVATE KEY", "")


def test_a_url_longer_than_the_limit_is_hidden() -> None:
    assert "hush" not in hidden("nats://" + "hush" * 10_000 + "@hub", limit=100)


def test_a_long_text_is_cut_with_a_count_of_the_other_characters() -> None:
    assert hidden("a" * TEXT_MAX) == "a" * TEXT_MAX
    assert hidden("a " * TEXT_MAX) == "a " * (TEXT_MAX // 2) + f"… ({TEXT_MAX} more characters)"


def test_a_long_error_message_is_cut() -> None:
    assert len(error_text(ValueError("a" * 1_000_000))) < ERROR_MAX + 100


def test_a_value_is_quoted_briefly_and_without_secrets() -> None:
    assert quoted("a'b") == repr("a'b")
    assert quoted(f"token {JWT}") == "'token ***'"
    assert len(quoted("a" * 130_000)) < 150


def test_an_enumeration_counts_the_texts_that_it_leaves_out() -> None:
    assert enumerated(["a", "b"], 2) == "a, b"
    assert enumerated(["a", "b", "c", "d"], 2) == "a, b and 2 more"


@pytest.mark.parametrize("limit", [20, 21, 500])
def test_a_shortened_text_keeps_its_beginning_and_its_end(limit: int) -> None:
    assert shortened("x" * limit, limit) == "x" * limit
    text = shortened(f"begin{'x' * 1000}end", limit)
    assert len(text) == limit
    assert text.startswith("begin")
    assert text.endswith("end")


def test_known_secrets_are_hidden_within_words() -> None:
    hide = Hider(["correct horse", "correct horse battery", "", " "])
    assert hide("xcorrect horse batteryx, correct horse") == "x***x, ***"


def test_a_secret_is_hidden_in_a_repr_and_in_a_url() -> None:
    secret = "it's \\ 100% @home"
    hide = Hider([secret])
    assert hide(f"{secret} {secret!r} nats:u:{quote(secret, safe='')}") == '*** "***" nats:u:***'


def test_a_short_secret_is_hidden_only_as_a_whole_word() -> None:
    assert Hider(["s3t"])("s3t: set s3t3 of (s3t)") == "***: set s3t3 of (***)"
