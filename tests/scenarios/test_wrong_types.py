"""A sync that writes an object which its kind cannot hold fails, and nothing is written."""

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


class Writes(Controller):
    """Writes a sign whose text is a number."""

    shops = primary(kv(Shop, bucket="shops"))
    signs = secondary(kv(Sign, bucket="signs"))

    def __init__(self) -> None:
        super().__init__()
        self.error = ""

    async def sync_handler(self, key: str) -> None:
        try:
            await self.write(key)
        except UsageError as error:
            self.error = str(error)
            raise

    async def write(self, key: str) -> None:
        await self.signs.apply(key, Sign(spec=Text(WRONG)))


class Creates(Writes):
    async def write(self, key: str) -> None:
        await self.signs.create(key, Sign(spec=Text(WRONG)))


class Reports(Writes):
    async def write(self, key: str) -> None:
        await self.shops.update_status(key, {"ready": WRONG})


class Puts(Writes):
    async def write(self, key: str) -> None:
        await self.shops.put(key, Shop(spec=Text(WRONG)))


@pytest.mark.parametrize(
    ("controller", "kind", "field"),
    [
        (Writes, "Sign.signs", "spec.text"),
        (Creates, "Sign.signs", "spec.text"),
        (Reports, "Shop.shops", "status.ready"),
        (Puts, "Shop.shops", "spec.text"),
    ],
)
async def test_a_write_of_a_wrong_type_fails_the_sync_and_writes_nothing(
    controller: type[Writes], kind: str, field: str
) -> None:
    subject = controller()
    async with running(subject) as harness:
        await subject.shops.put("corner", Shop(spec=Text("hi")))
        await harness.run_until(lambda: subject.error)
        await harness.run_for(1)
        assert subject.signs.get("corner") is None
        assert [slot.error("corner") for slot in (subject.shops, subject.signs)] == [None, None]
    assert subject.error.startswith(f"{kind} cannot hold this object: not a valid ")
    assert subject.error.endswith(f"`$.{field}`")
