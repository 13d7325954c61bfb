"""Mistakes in external clients raise clear errors and never create a resource twice."""

import math
from typing import Any

import msgspec
import pytest

from natsctl import KvKind, Object, kv
from natsctl.errors import HandlerError, UsageError
from natsctl.managed import ExternalClientFns, Managed, Observation
from tests.support.controllers.disk_reconciler import CloudClient, DiskSpec, Play


class DiskStatus(msgspec.Struct, frozen=True):
    size: int = 0


class TypedDisk(Object, frozen=True, kw_only=True):
    spec: DiskSpec
    status: DiskStatus = DiskStatus()  # type: ignore[assignment]  # the status has a declared type


TYPED_DISKS: KvKind[Any] = kv(TypedDisk, bucket="disks")
WRONG: Any = {"not": "of the type"}


@pytest.mark.parametrize("verb", ["observe", "update", "delete"])
async def test_a_status_of_a_wrong_type_is_an_error_and_not_stored(verb: str) -> None:
    async def wrong(self: CloudClient, managed: Managed[Any]) -> Any:
        observation = await getattr(CloudClient, verb)(self, managed)
        managed.status["size"] = WRONG
        return observation

    play = Play(kind=TYPED_DISKS)
    play.cloud.goes_after_s = 60
    await play.put(size=3)
    await play.settle()
    if verb == "update":
        await play.edit("a", lambda document: document["spec"].update(size=4))
    if verb == "delete":
        await play.primary.delete("a")
    play.connect_with(type("Wrong", (CloudClient,), {verb: wrong}))
    with pytest.raises(UsageError, match=r"TypedDisk.disks cannot hold .* `\$.status.size`"):
        await play.reconcile()
    stored = await play.store.get("a")
    assert TYPED_DISKS.decode(stored.value).status == DiskStatus(size=3)
    assert (await play.message()).startswith(f"cannot {verb}: UsageError: TypedDisk.disks cannot")
    play.connect_with(CloudClient)
    await play.reconcile()
    assert (await play.conditions())["Synced"] == ("True", "ReconcileSuccess")


@pytest.mark.parametrize(
    ("part", "path"), [("annotations", "metadata.annotations"), ("spec", "spec.zone")]
)
async def test_a_late_initialization_of_a_wrong_type_is_an_error_and_not_stored(
    part: str, path: str
) -> None:
    class Wrong(CloudClient):
        async def observe(self, managed: Managed[Any]) -> Observation:
            observation = await super().observe(managed)
            getattr(managed, part)["zone"] = WRONG
            return msgspec.structs.replace(observation, late_initialized=True)

    play = Play()
    await play.put()
    await play.settle()
    play.connect_with(Wrong)
    with pytest.raises(UsageError, match=rf"Disk.disks cannot hold .* `\$.{path}"):
        await play.reconcile()
    stored = await play.store.get("a")
    assert play.store.kind.valid(stored.value)
    assert f"$.{path}" in await play.message()


async def test_an_observe_that_returns_none_raises_handler_error() -> None:
    async def observe(_managed: Managed[Any]) -> Any:
        return None

    play = Play(client=lambda _: ExternalClientFns(observe_fn=observe))
    await play.put()
    with pytest.raises(HandlerError, match="observe returned None: return an Observation"):
        await play.reconcile()


@pytest.mark.parametrize("verb", ["observe", "create", "update", "delete"])
async def test_a_client_function_that_is_not_async_raises_handler_error(verb: str) -> None:
    def plain(_self: CloudClient, _managed: Managed[Any]) -> None:
        """Do nothing: the function is not async."""

    play = Play()
    await play.put()
    if verb != "create":
        await play.settle()
    if verb == "update":
        await play.edit("a", lambda document: document["spec"].update(size=2))
    if verb == "delete":
        await play.primary.delete("a")
    play.connect_with(type("Wrong", (CloudClient,), {verb: plain}))
    with pytest.raises(HandlerError, match="returned None at once: write it with `async def`"):
        await play.reconcile()
    if verb == "create":  # it may have created something
        play.connect_with(CloudClient)
        for _ in range(3):
            await play.reconcile()
        assert play.cloud.created == []


@pytest.mark.parametrize("result", ["soon", -1.0, math.nan, math.inf, None, True])
async def test_a_poll_interval_hook_that_returns_no_seconds_raises_handler_error(
    result: Any,
) -> None:
    play = Play(poll_interval_hook=lambda _managed, _usual_s: result)
    await play.put()
    with pytest.raises(HandlerError, match=r"poll_interval_hook returned .*: return seconds"):
        await play.reconcile()


@pytest.mark.parametrize(
    "options",
    [
        {"poll_interval_hook": lambda _managed, _usual_s: 0.0},
        {"poll_interval_s": 0.01, "poll_jitter_s": 0.01},
    ],
    ids=["hook", "jitter"],
)
async def test_a_poll_interval_has_a_minimum(options: dict[str, Any]) -> None:
    play = Play(**options)
    await play.put()
    await play.reconcile()
    delays = {await play.reconcile() for _ in range(50)}
    assert delays == {0.1}
