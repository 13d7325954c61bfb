"""How many functions and modules a put crosses, from the socket until its key is at rest."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import msgspec

import natsctl
from natsctl import Controller, ControllerRuntime, Object, kv, primary
from tests.support.stores.bucket_server import OfflineStores

CALLS_MAX = 32
FILES_MAX = 12
ROUNDS = 50
PACKAGE = str(Path(natsctl.__file__).parent)
LEFT_OUT = (
    str(Path(PACKAGE, "testing")),  # the loop with virtual time
    str(Path(PACKAGE, "telemetry", "tracing.py")),  # a test before may have turned spans on
)


class Spec(msgspec.Struct, frozen=True):
    size: int


class Widget(Object, frozen=True):
    spec: Spec


class Widgets(Controller):
    """Reads its object."""

    resync_s = 1e7
    widgets = primary(kv(Widget, bucket="widgets"))

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def sync_handler(self, key: str) -> None:
        widget = self.widgets.get(key)
        assert widget is not None
        self.sizes.append(widget.spec.size)


def value(size: int) -> bytes:
    return b'{"metadata":{"generation":1},"spec":{"size":%d},"status":{"a":1}}' % size


@asynccontextmanager
async def running(controller: Controller, stores: OfflineStores) -> AsyncIterator[None]:
    runtime = ControllerRuntime(controller, nats=stores)
    task = asyncio.create_task(runtime.run())
    await stores.began.wait()
    try:
        yield
    finally:
        runtime.stop()
        await task


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_put_crosses_few_functions_and_modules() -> None:
    controller, stores = Widgets(), OfflineStores("widgets", 1)
    calls: list[str] = []

    def count(frame: FrameType, event: str, _arg: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE) and not name.startswith(LEFT_OUT):
            calls.append(name)

    async with running(controller, stores):
        await stores.receive([("a", value(0))])
        await turns()
        sys.setprofile(count)
        try:
            for number in range(1, ROUNDS + 1):
                await stores.receive([("a", value(number))])
                await turns()
        finally:
            sys.setprofile(None)
        assert controller.sizes == list(range(ROUNDS + 1))
    files = {name for name in calls if calls.count(name) >= ROUNDS}
    assert len(calls) / ROUNDS <= CALLS_MAX
    assert len(files) <= FILES_MAX
