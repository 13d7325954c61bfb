"""Values are shown without secrets and in a limited length, causes without what varies."""

import json

import pytest

from natsctl.console.answers import TEXT_MAX, shown_value
from natsctl.console.overview import cause_of
from natsctl.jetstream.bucket import Message
from natsctl.telemetry.hiding import MASK


def message(value: bytes) -> Message:
    return Message("a", 1, value, None, "2026-11-22T20:00:00Z")


def test_the_fields_of_secrets_are_masked_wherever_their_text_occurs() -> None:
    value = {"spec": {"apiKey": "abcd1234", "url": "http://x/abcd1234"}, "n": 1}
    shown = shown_value(message(json.dumps(value).encode()))
    masked = {"spec": {"apiKey": MASK, "url": f"http://x/{MASK}"}, "n": 1}
    assert json.loads(shown.text) == masked


def test_texts_that_look_like_a_secret_are_masked() -> None:
    shown = shown_value(message(b"nats://ann:s3cret@desk"))
    assert shown.text == f"nats://{MASK}@desk"


def test_numbers_are_not_rounded() -> None:
    assert "12345678901234567890.5" in shown_value(message(b'{"n": 12345678901234567890.5}')).text


def test_a_long_text_is_cut_and_its_rest_is_counted() -> None:
    shown = shown_value(message(b"x" * (TEXT_MAX + 7)))
    assert (len(shown.text), shown.omitted, shown.kind) == (TEXT_MAX, 7, "text")


def test_bytes_that_are_no_text_are_counted_only() -> None:
    shown = shown_value(message(b"\xff" * 9))
    assert (shown.text, shown.kind, shown.bytes) == ("", "binary", 9)


@pytest.mark.parametrize(
    ("key", "message", "cause"),
    [
        ("eu.shop-7", "no answer for eu.shop-7 in 30 s", "no answer for … in … s"),
        ("a", "ValueError: no a, as always", "ValueError: no …, as always"),
        ("k", "10.0.3.7:5000 refused", "… refused"),
        ("k", "trace 9f86d081-884c-4d65-9a2f-eaa0c55ad015", "trace …"),
        ("k", "object 0x7f2a at 9f86d081884c7d65", "object … at …"),
        ("k", "defaced facade", "defaced facade"),
    ],
)
def test_a_cause_has_no_part_that_varies(key: str, message: str, cause: str) -> None:
    assert cause_of(key, message) == cause
