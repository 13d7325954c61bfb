"""The greetings controller creates a route for each greeting and reports its readiness."""

from controllers.greetings import Greetings
from natsctl.testing import Harness, running
from tests.support.controllers.app_controller import document
from tests.support.stores.documents import put

GREETINGS, ROUTES, DEFAULTS = (
    Greetings.greetings.kind,
    Greetings.routes.kind,
    Greetings.defaults.kind,
)


async def greet(harness: Harness, key: str, **spec: object) -> None:
    await put(harness.stores.store(GREETINGS), key, {"spec": spec})
    await harness.run_until_idle()


async def payload(harness: Harness, key: str) -> str:
    text: str = (await document(harness.stores.store(ROUTES), key))["spec"]["payload"]
    return text


async def test_a_greeting_becomes_a_route_and_is_ready() -> None:
    async with running(Greetings()) as harness:
        await greet(harness, "shop", text="hi", replicas=2)

        route = await document(harness.stores.store(ROUTES), "shop")
        assert route["spec"] == {"subject": "hello.shop", "payload": "hi!hi!"}
        greeting = await document(harness.stores.store(GREETINGS), "shop")
        assert greeting["status"] == {"ready": True}


async def test_a_route_is_updated_and_deleted_with_its_greeting() -> None:
    async with running(Greetings()) as harness:
        await greet(harness, "shop", text="hi")
        await greet(harness, "shop", text="bye")
        assert await payload(harness, "shop") == "bye!"
        await harness.stores.store(GREETINGS).delete("shop")
        await harness.run_until_idle()
        assert harness.stores.store(ROUTES).keys() == []


async def test_own_punctuation_overrides_the_team_default_and_that_the_default_of_all() -> None:
    async with running(Greetings()) as harness:
        defaults = harness.stores.store(DEFAULTS)
        await put(defaults, "all", {"spec": {"punctuation": "."}})
        await put(defaults, "team", {"spec": {"punctuation": "?"}})
        await harness.run_until_idle()
        await greet(harness, "team.own", text="hi", punctuation="…")
        await greet(harness, "team.none", text="hi")
        await greet(harness, "other.none", text="hi")
        await greet(harness, "none", text="hi")

        keys = harness.stores.store(ROUTES).keys()
        assert {key: await payload(harness, key) for key in keys} == {
            "team.own": "hi…",
            "team.none": "hi?",
            "other.none": "hi.",
            "none": "hi.",
        }
