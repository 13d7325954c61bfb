"""Events of a resource: their content, and marking them as done."""

import pytest

from natsctl import UsageError
from natsctl.resource import Key
from tests.support.controllers.resource_subscribers import handled, resource_harness, synced


class TestKey:
    def test_a_key_is_a_string(self) -> None:
        assert {Key("shop"): 1}["shop"] == 1  # type: ignore[index]
        assert f"{Key('team/shop')}" == "team/shop"

    @pytest.mark.parametrize(
        ("key", "namespace", "name"),
        [
            ("team/shop", "team", "shop"),
            ("shop", "", "shop"),
            ("team.shop", "", "team.shop"),
            ("", "", ""),
        ],
    )
    def test_a_key_has_a_namespace_and_a_name(self, key: str, namespace: str, name: str) -> None:
        assert (Key(key).namespace, Key(key).name) == (namespace, name)


async def test_an_event_has_an_object_unless_it_is_a_sync() -> None:
    async with resource_harness("team/shop") as harness, harness.resource.events() as events:
        event = await anext(events)
        without = await anext(events)
        assert event.object.spec.text == "hi"
        assert (repr(event), repr(without)) == ("<upsert team/shop>", "<sync>")
        with pytest.raises(UsageError, match="a sync event has no object"):
            assert without.object
        event.done()
        without.done()


async def test_done_can_be_called_once() -> None:
    async with resource_harness("team/shop") as harness, harness.resource.events() as events:
        event = await anext(events)
        event.done()
        with pytest.raises(UsageError, match="<upsert team/shop> is already marked done"):
            event.done()
        await synced(events)


async def test_an_exception_that_is_no_error_returns_the_event_to_its_queue() -> None:
    async with resource_harness("team/shop") as harness, harness.resource.events() as events:
        interrupted = await anext(events)
        with pytest.raises(KeyboardInterrupt):
            async with interrupted:
                raise KeyboardInterrupt
        assert await handled(events, 1) == [("upsert", "team/shop", "hi")]
        assert await synced(events) == [("sync", "", "")]
