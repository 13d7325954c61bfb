"""Events of a resource: their content, and marking them as done."""

import pytest

from natsctl import UsageError
from natsctl.resource import Event, EventKind, Key


class Origin:
    """An event source that records the events that are returned to it."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def settle(self, kind: EventKind, key: Key, error: Exception | None) -> None:
        self.calls.append(("settled", kind, key, error))

    def restore(self, key: Key) -> None:
        self.calls.append(("restored", key))

    def lose(self, kind: EventKind, key: Key) -> None:
        self.calls.append(("lost", kind, key))


@pytest.fixture
def origin() -> Origin:
    return Origin()


def upsert(origin: Origin) -> Event[str]:
    return Event(EventKind.UPSERT, Key("team/shop"), "object", origin)


def sync(origin: Origin) -> Event[str]:
    return Event(EventKind.SYNC, Key(), None, origin)


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


class TestEvent:
    def test_an_event_has_an_object_unless_it_is_a_sync(self, origin: Origin) -> None:
        event, without = upsert(origin), sync(origin)
        assert event.object == "object"
        with pytest.raises(UsageError, match="a sync event has no object"):
            assert without.object
        event.done()
        without.done()

    def test_the_repr_shows_kind_and_key(self, origin: Origin) -> None:
        events = (upsert(origin), sync(origin))
        assert [repr(event) for event in events] == ["<upsert team/shop>", "<sync>"]
        for event in events:
            event.done()

    def test_done_can_be_called_once(self, origin: Origin) -> None:
        event = upsert(origin)
        event.done()
        with pytest.raises(UsageError, match="<upsert team/shop> is already marked done"):
            event.done()
        del event
        assert origin.calls == [("settled", "upsert", "team/shop", None)]

    def test_done_accepts_the_error_of_a_failure(self, origin: Origin) -> None:
        error = OSError("no room")
        upsert(origin).done(error)
        assert origin.calls == [("settled", "upsert", "team/shop", error)]

    def test_a_dropped_event_is_reported_as_lost(self, origin: Origin) -> None:
        event = upsert(origin)
        assert origin.calls == []
        del event
        assert origin.calls == [("lost", "upsert", "team/shop")]

    async def test_an_exception_that_is_no_error_returns_the_event_to_its_queue(
        self, origin: Origin
    ) -> None:
        async def interrupt() -> None:
            async with upsert(origin):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await interrupt()
        assert origin.calls == [("restored", "team/shop")]
