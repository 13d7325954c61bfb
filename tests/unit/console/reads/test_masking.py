"""Values are shown without secrets, and in a limited length."""

import json

from natsctl.console.reads.masking import TEXT_MAX, shown_value
from natsctl.jetstream.bucket.bucket import Message
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
