"""A sync that writes an object which its kind cannot hold fails, and nothing is written."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from natsctl import Controller, Object, kv, primary, secondary
from natsctl.errors import UsageError
from natsctl.testing import running


class Text(msgspec.Struct, frozen=True):
    text: str


class State(msgspec.Struct, frozen=True, rename="camel"):
    ready: bool = False
    observed_generation: int | None = None


class Shop(Object, frozen=True, kw_only=True):
    spec: Text
    status: State = State()  # type: ignore[assignment]  # the status has a declared type


class Sign(Object, frozen=True):
    spec: Text


WRONG: Any = 5
Write = Callable[["Writes", str], Awaitable[object]]


class Writes(Controller):
    """Does the write that a test sets."""

    shops = primary(kv(Shop, bucket="shops"))
    signs = secondary(kv(Sign, bucket="signs"))

    def __init__(self, write: Write) -> None:
        self.write = write
        self.error = ""

    async def sync_handler(self, key: str) -> None:
        try:
            await self.write(self, key)
        except UsageError as error:
            self.error = str(error)
            raise


@pytest.mark.parametrize(
    ("write", "kind", "field"),
    [
        (lambda it, key: it.signs.apply(key, Sign(spec=Text(WRONG))), "Sign.signs", "spec.text"),
        (lambda it, key: it.signs.create(key, Sign(spec=Text(WRONG))), "Sign.signs", "spec.text"),
        (lambda it, key: it.shops.put(key, Shop(spec=Text(WRONG))), "Shop.shops", "spec.text"),
        (
            lambda it, key: it.shops.update_status(key, {"ready": WRONG}),
            *("Shop.shops", "status.ready"),
        ),
    ],
)
async def test_a_write_of_a_wrong_type_fails_the_sync_and_writes_nothing(
    write: Write, kind: str, field: str
) -> None:
    subject = Writes(write)
    async with running(subject) as harness:
        await subject.shops.put("corner", Shop(spec=Text("hi")))
        await harness.run_until(lambda: subject.error)
        await harness.run_for(1)
        assert subject.signs.get("corner") is None
        assert [slot.error("corner") for slot in (subject.shops, subject.signs)] == [None, None]
    assert subject.error.startswith(f"{kind} cannot hold this object: not a valid ")
    assert subject.error.endswith(f"`$.{field}`")
