"""Mistakes in external clients raise clear errors and never create a resource twice."""

import math
from typing import Any

import pytest

from natsctl.core.sync.calls import delay_of
from natsctl.errors import HandlerError
from natsctl.managed import ExternalClientFns, Managed
from tests.support.controllers.disk_reconciler import Cloud, CloudClient, Play


async def test_an_observe_that_returns_none_raises_handler_error() -> None:
    async def observe(_managed: Managed[Any]) -> Any:
        return None

    play = Play(client=lambda _: ExternalClientFns(observe_fn=observe))
    await play.put()
    with pytest.raises(HandlerError, match="observe returned None: return an Observation"):
        await play.reconcile()


@pytest.mark.parametrize("verb", ["observe", "update", "delete"])
async def test_a_client_function_that_is_not_async_raises_handler_error(verb: str) -> None:
    def plain(_managed: Managed[Any]) -> None:
        """Do nothing: the function is not async."""

    class Wrong(CloudClient):
        pass

    setattr(Wrong, verb, lambda _self, managed: plain(managed))
    play = Play()
    await play.put()
    await play.reconcile()
    await play.reconcile()
    if verb == "update":
        await play.edit("a", lambda document: document["spec"].update(size=2))
    if verb == "delete":
        await play.primary.delete("a")
    play.connect_with(Wrong)
    with pytest.raises(HandlerError, match="returned None at once: write it with `async def`"):
        await play.reconcile()


async def test_a_create_that_is_not_async_is_not_repeated() -> None:
    cloud = Cloud()

    class Wrong(CloudClient):
        def create(self, managed: Managed[Any]) -> None:  # type: ignore[override]  # create is not async
            cloud.created.append(managed.key)

    play = Play(cloud=cloud, client=Wrong)  # type: ignore[arg-type]
    await play.put()
    with pytest.raises(HandlerError, match="create returned None at once"):
        await play.reconcile()
    for _ in range(3):
        await play.reconcile()
    assert cloud.created == ["a"]


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
    delays = {delay_of(await play.reconcile(), "reconcile") for _ in range(50)}
    assert delays == {0.1}
