"""The log of invalid objects: ten lines, then one count per minute."""

import asyncio
import logging

import msgspec
import pytest

import natsctl
from natsctl import KvKind
from natsctl.core.informer import COUNT_S, SHOWN_MAX, Informer
from natsctl.testing import MemoryStore
from tests.support.stores.sample_objects import Thing, informed

THINGS = natsctl.kv(Thing, bucket="things")


class Plain(msgspec.Struct):
    text: str


async def logged(
    caplog: pytest.LogCaptureFixture,
    values: list[bytes],
    kind: KvKind[Thing] | KvKind[Plain] = THINGS,
    *,
    watched_s: float = 0.0,
) -> list[str]:
    """Return the lines that an informer logs for a bucket with these values."""
    store = MemoryStore(kind)
    for number, value in enumerate(values):
        await store.create(f"k{number}", value)
    informer: Informer[Thing] | Informer[Plain] = Informer(store, kind)  # type: ignore[misc]
    with caplog.at_level(logging.ERROR):
        async with informed(informer):
            await asyncio.sleep(watched_s)
    return caplog.messages


async def test_ten_invalid_objects_are_logged_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    messages = await logged(caplog, [b"[]"] * 100, watched_s=COUNT_S / 2)
    assert len([message for message in messages if "revision=" in message]) == SHOWN_MAX


async def test_further_invalid_objects_are_counted_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = await logged(caplog, [b"[]"] * 100, watched_s=10 * COUNT_S)
    assert messages[SHOWN_MAX:] == ["skipped more invalid objects kind=Thing.things objects=90"]


async def test_after_a_minute_without_invalid_objects_the_next_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore(THINGS)
    for number in range(SHOWN_MAX + 1):
        await store.create(f"k{number}", b"[]")
    with caplog.at_level(logging.ERROR):
        async with informed(Informer(store, THINGS)):
            await asyncio.sleep(3 * COUNT_S)
            await store.create("late", b"[]")
            await asyncio.sleep(1)
    assert "kind=Thing.things key=late revision=12" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("kind", "value", "cause"),
    [
        (THINGS, b'{"text": "hi"}', "declare a plain Struct: the values have no `spec`"),
        (THINGS, b"[1]", "declare a plain Struct: the values have no `spec`"),
        (THINGS, b"\x81\xa4text\xa2hi", "declare `bytes`, or give a decoder"),
        (
            natsctl.kv(Plain, bucket="things"),
            b'{"metadata": {}, "spec": {"text": "hi"}}',
            "declare a subclass of natsctl.Object: the values have `metadata` and `spec`",
        ),
    ],
)
async def test_the_first_line_names_the_likely_cause(
    caplog: pytest.LogCaptureFixture,
    kind: KvKind[Thing] | KvKind[Plain],
    value: bytes,
    cause: str,
) -> None:
    messages = await logged(caplog, [value] * 3, kind)
    assert [cause in message for message in messages] == [True, False, False]


async def test_an_object_with_a_wrong_field_suggests_no_other_declaration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [message] = await logged(caplog, [b'{"spec": {"text": 1}}'])
    assert "declare" not in message
