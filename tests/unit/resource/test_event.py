"""An event says what it is of, is marked once, and goes back where it came from."""

import pytest

from natsctl import UsageError
from natsctl.resource import Event, EventKind, Key


class Desk:
    """An origin that notes what comes back."""

    def __init__(self) -> None:
        self.notes: list[tuple[object, ...]] = []

    def settle(self, kind: EventKind, key: Key, error: Exception | None) -> None:
        self.notes.append(("settled", kind, key, error))

    def restore(self, key: Key) -> None:
        self.notes.append(("restored", key))

    def lose(self, kind: EventKind, key: Key) -> None:
        self.notes.append(("lost", kind, key))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def upsert(desk: Desk) -> Event[str]:
    return Event(EventKind.UPSERT, Key("team/shop"), "object", desk)


def sync(desk: Desk) -> Event[str]:
    return Event(EventKind.SYNC, Key(), None, desk)


class TestKey:
    def test_it_is_the_string_itself(self) -> None:
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
    def test_it_knows_its_namespace_and_its_name(self, key: str, namespace: str, name: str) -> None:
        assert (Key(key).namespace, Key(key).name) == (namespace, name)


class TestEvent:
    def test_it_has_an_object_unless_it_is_a_sync(self, desk: Desk) -> None:
        event, without = upsert(desk), sync(desk)
        assert event.object == "object"
        with pytest.raises(UsageError, match="a sync event has no object"):
            assert without.object
        event.done()
        without.done()

    def test_it_shows_what_it_is_of(self, desk: Desk) -> None:
        events = (upsert(desk), sync(desk))
        assert [repr(event) for event in events] == ["<upsert team/shop>", "<sync>"]
        for event in events:
            event.done()

    def test_done_is_said_once(self, desk: Desk) -> None:
        event = upsert(desk)
        event.done()
        with pytest.raises(UsageError, match="<upsert team/shop> is already marked done"):
            event.done()
        del event
        assert desk.notes == [("settled", "upsert", "team/shop", None)]

    def test_done_may_say_what_failed(self, desk: Desk) -> None:
        error = OSError("no room")
        upsert(desk).done(error)
        assert desk.notes == [("settled", "upsert", "team/shop", error)]

    def test_one_that_is_dropped_is_lost(self, desk: Desk) -> None:
        event = upsert(desk)
        assert desk.notes == []
        del event
        assert desk.notes == [("lost", "upsert", "team/shop")]

    async def test_what_is_no_error_passes_and_leaves_the_event_untouched(self, desk: Desk) -> None:
        async def interrupt() -> None:
            async with upsert(desk):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await interrupt()
        assert desk.notes == [("restored", "team/shop")]
