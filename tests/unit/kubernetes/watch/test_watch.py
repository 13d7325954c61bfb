"""A watch lists, follows, goes on where it ended, and breaks rather than lose something."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from natsctl.errors import (
    InvalidObjectError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    WatchBrokenError,
)
from natsctl.kubernetes.http.api_errors import ExpiredError
from natsctl.kubernetes.watch.listing import Incarnation
from natsctl.kubernetes.watch.stream import TIMEOUT_S
from natsctl.kubernetes.watch.watch import TRIES, KubeWatch
from natsctl.model.manifests import KubeKind, kube
from natsctl.model.store import Applied, Deleted, Listed, Listing, WatchEvent
from tests.support.stores.scripted_transport import (
    NEW,
    ScriptedWire,
    bookmark,
    line,
    page,
    refusal,
    thing,
)

PATH = "/api/v1/things"
SERVER = "https://server"
THINGS = kube("v1", "Thing")
BROKEN = WatchBrokenError("the connection broke")


async def path() -> str:
    return PATH


def watch_of(
    wire: ScriptedWire,
    kind: KubeKind[object] = THINGS,  # type: ignore[assignment]
    incarnation: Incarnation | None = None,
) -> KubeWatch:
    return KubeWatch(wire, kind, path, incarnation or Incarnation(SERVER))


async def told(events: AsyncIterator[WatchEvent], count: int) -> list[str]:
    """Take so many events, and return what they say in short."""
    return [short(await anext(events)) for _ in range(count)]


async def told_until_broken(watch: KubeWatch) -> tuple[list[str], StoreError]:
    """Follow until the watch breaks."""
    found: list[str] = []
    async with watch() as events:
        try:
            while True:
                found.append(short(await anext(events)))
        except StoreError as error:
            return found, error


def short(event: WatchEvent) -> str:  # type: ignore[return]
    match event:
        case Listing():
            return f"listing of {event.incarnation}"
        case Listed():
            return f"listed {event.revision}"
        case Deleted():
            return f"deleted {event.key}@{event.revision}"
        case Applied():
            return f"{event.stored.key}@{event.stored.revision}"


LISTING = f"listing of {SERVER}"


@pytest.fixture
def wire() -> ScriptedWire:
    return ScriptedWire()


class TestListing:
    async def test_pages_make_one_listing_at_one_revision(self, wire: ScriptedWire) -> None:
        wire.replies += [
            page(9, thing("a", 3), thing("b", 4), after="x"),
            page(9, thing("c", 5), after="y"),
            page(9, thing("d", 6)),
        ]
        async with watch_of(wire)() as events:
            assert await told(events, 6) == [
                LISTING,
                *("team-a/a@3", "team-a/b@4", "team-a/c@5", "team-a/d@6"),
                "listed 9",
            ]
        assert [asked.query for asked in wire.calls] == [
            {"limit": "500"},
            {"limit": "500", "continue": "x"},
            {"limit": "500", "continue": "y"},
        ]

    @pytest.mark.parametrize(
        "late", [ExpiredError("too old"), page(10, thing("b", 4))], ids=["expired", "moved on"]
    )
    async def test_a_page_that_comes_too_late_begins_it_anew_in_one_piece(
        self, wire: ScriptedWire, late: object
    ) -> None:
        wire.replies += [page(9, thing("a", 3), after="x"), late]
        wire.replies += [page(12, thing("b", 4), thing("c", 11))]
        async with watch_of(wire)() as events:
            assert await told(events, 6) == [
                *(LISTING, "team-a/a@3"),
                *(LISTING, "team-a/b@4", "team-a/c@11", "listed 12"),
            ]
        assert wire.calls[-1].query == {}

    async def test_a_list_without_items_is_empty(self, wire: ScriptedWire) -> None:
        wire.replies += [{"metadata": {"resourceVersion": "9"}, "items": None}]
        async with watch_of(wire)() as events:
            assert await told(events, 2) == [LISTING, "listed 9"]

    @pytest.mark.parametrize(
        ("kind", "asked"),
        [
            (
                kube("v1", "Thing", labels="a in (x,y),!b"),
                {"labelSelector": "a in (x,y),!b"},
            ),
            (
                kube("v1", "Thing", labels={"a": "x"}).only("team-a/b"),
                {"labelSelector": "a=x", "fieldSelector": "metadata.name=b"},
            ),
            (THINGS, {}),
        ],
    )
    async def test_the_server_selects(
        self, wire: ScriptedWire, kind: KubeKind[object], asked: dict[str, str]
    ) -> None:
        wire.replies += [page(9, after="x"), page(9)]
        wire.streams += [[ScriptedWire.SILENCE]]
        async with watch_of(wire, kind)() as events:
            await told(events, 2)
            follow = asyncio.create_task(told(events, 1))
            await asyncio.sleep(1)
            follow.cancel()
            await asyncio.wait({follow})
        requests = [*wire.calls, *wire.watches]
        assert len(requests) == 3
        for request in requests:
            selectors = {n: v for n, v in request.query.items() if n.endswith("Selector")}
            assert selectors == asked

    async def test_values_are_whole_documents_without_managed_fields(
        self, wire: ScriptedWire
    ) -> None:
        wire.replies += [page(9, thing("a", 3, data={"x": 'q"ü'}))]
        async with watch_of(wire)() as events:
            await told(events, 1)
            event = await anext(events)
        assert isinstance(event, Applied)
        assert event.stored.value.decode() == (
            '{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a","namespace":"team-a",'
            '"resourceVersion":"3"},"data":{"x":"q\\"ü"}}'
        )

    async def test_of_metadata_only_nothing_else_is_kept(self, wire: ScriptedWire) -> None:
        partial = {**thing("a", 3), "kind": "PartialObjectMetadata", "apiVersion": "meta/v1"}
        wire.replies += [page(9, partial, thing("b", 4, data={"x": "y"}))]
        async with watch_of(wire, kube("v1", "Thing", metadata_only=True))() as events:  # type: ignore[arg-type]
            await told(events, 1)
            values = [await anext(events), await anext(events)]
        for event in values:
            assert isinstance(event, Applied)
            assert event.stored.value.startswith(b'{"apiVersion":"v1","kind":"Thing","metadata":{')
            assert b"data" not in event.stored.value.replace(b"metadata", b"")

    @pytest.mark.parametrize(
        "error", [StoreMissingError("no such kind"), PermissionDeniedError("may not list")]
    )
    async def test_a_list_that_is_refused_breaks_the_watch(
        self, wire: ScriptedWire, error: StoreError
    ) -> None:
        wire.replies += [error]
        assert await told_until_broken(watch_of(wire)) == ([], error)

    @pytest.mark.parametrize(
        "nonsense",
        [
            {"items": []},
            [],
            page(9, {"metadata": {"name": "a"}}),
            page(9, {"metadata": {"name": "a", "resourceVersion": "x"}}),
            {"metadata": {"resourceVersion": ""}, "items": []},
        ],
    )
    async def test_nonsense_breaks_it(self, wire: ScriptedWire, nonsense: object) -> None:
        wire.replies += [nonsense]
        found, _ = await told_until_broken(watch_of(wire))
        assert [event for event in found if event.startswith("listed")] == []


class TestFollowing:
    @pytest.fixture(autouse=True)
    def _one_thing(self, wire: ScriptedWire) -> None:
        wire.replies += [page(9, thing("a", 3))]

    async def test_changes_follow_the_listing(self, wire: ScriptedWire) -> None:
        added, modified = line("ADDED", thing("b", 10)), line("MODIFIED", thing("b", 11))
        wire.streams += [[added, modified, line("DELETED", thing("a", 12)), wire.SILENCE]]
        async with watch_of(wire)() as events:
            await told(events, 3)
            assert await told(events, 3) == ["team-a/b@10", "team-a/b@11", "deleted team-a/a@12"]
            assert wire.open == 1
        assert wire.open == 0
        [asked] = wire.watches
        assert asked.query["watch"] == "true"
        assert asked.query["allowWatchBookmarks"] == "true"
        assert asked.query["resourceVersion"] == "9"

    async def test_a_request_that_ends_is_followed_by_one_that_goes_on_there(
        self, wire: ScriptedWire
    ) -> None:
        wire.streams += [
            [line("ADDED", thing("b", 10)), bookmark(15)],
            [line("DELETED", thing("b", 17))],
            [line("ADDED", thing("c", 18)), wire.SILENCE],
        ]
        async with watch_of(wire)() as events:
            await told(events, 3)
            assert await told(events, 3) == ["team-a/b@10", "deleted team-a/b@17", "team-a/c@18"]
        assert [asked.query["resourceVersion"] for asked in wire.watches] == ["9", "15", "17"]
        assert len(wire.calls) == 1  # the listing

    @pytest.mark.parametrize(
        ("kind", "asked"),
        [
            (kube("v1", "Thing", labels={"a": "x"}), {"limit": "1"}),
            (THINGS.only("team-a/a"), {"limit": "1", "fieldSelector": "metadata.name=a"}),
        ],
    )
    async def test_before_it_goes_on_it_looks_how_far_the_server_is(
        self, wire: ScriptedWire, kind: KubeKind[object], asked: dict[str, str]
    ) -> None:
        wire.streams += [[], [line("ADDED", thing("b", 10)), wire.SILENCE]]
        async with watch_of(wire, kind)() as events:
            await told(events, 4)
        assert [look.query for look in wire.looks] == [asked]

    async def test_so_is_one_that_broke(self, wire: ScriptedWire) -> None:
        wire.streams += [
            [line("ADDED", thing("b", 10)), BROKEN],
            [BROKEN],
            [line("ADDED", thing("c", 11)), wire.SILENCE],
        ]
        async with watch_of(wire)() as events:
            await told(events, 3)
            assert await told(events, 2) == ["team-a/b@10", "team-a/c@11"]
        assert len(wire.calls) == 1

    @pytest.mark.parametrize("end", [[], [BROKEN], [StoreError("503")], [b"{"]])
    async def test_after_a_few_quick_tries_it_breaks(
        self, wire: ScriptedWire, end: list[object]
    ) -> None:
        wire.streams += [end] * (TRIES + 1)
        clock = asyncio.get_running_loop().time
        _, error = await told_until_broken(watch_of(wire))
        assert isinstance(error, WatchBrokenError)
        assert not wire.streams
        assert 0.1 < clock() < 1

    async def test_a_request_that_lived_for_a_while_begins_the_count_of_tries_anew(
        self, wire: ScriptedWire
    ) -> None:
        wire.streams += [[BROKEN]] * TRIES
        wire.streams += [[line("ADDED", thing("b", 10)), BROKEN]]
        wire.streams += [[BROKEN]] * (TRIES - 1)
        wire.streams += [[wire.SILENCE]]
        async with watch_of(wire)() as events:
            assert (await told(events, 4))[-1] == "team-a/b@10"
            await asyncio.sleep(60)  # whoever takes slowly
            follow = asyncio.create_task(told(events, 1))
            await asyncio.sleep(60)
            assert not wire.streams
            assert not follow.done()
            follow.cancel()
            await asyncio.wait({follow})

    @pytest.mark.parametrize("line", [refusal(410, "Expired"), refusal(500, "InternalError")])
    async def test_what_the_server_no_longer_knows_breaks_it_at_once(
        self, wire: ScriptedWire, line: object
    ) -> None:
        wire.streams += [[line]]
        found, error = await told_until_broken(watch_of(wire))
        assert found == [LISTING, "team-a/a@3", "listed 9"]
        assert isinstance(error, WatchBrokenError)
        assert len(wire.watches) == 1

    @pytest.mark.parametrize(
        "error",
        [ExpiredError("too old"), PermissionDeniedError("no"), StoreMissingError("no kind")],
    )
    async def test_a_refusal_breaks_it_at_once(self, wire: ScriptedWire, error: StoreError) -> None:
        wire.streams += [[error]]
        assert (await told_until_broken(watch_of(wire)))[1] is error

    async def test_requests_differ_in_how_long_they_last_and_are_given_up_later(
        self, wire: ScriptedWire
    ) -> None:
        wire.streams += [[line("ADDED", thing("b", 10 + n))] for n in range(TRIES)]
        wire.streams += [[wire.SILENCE]]
        async with watch_of(wire)() as events:
            await told(events, 3 + TRIES)
            follow = asyncio.create_task(told(events, 1))
            await asyncio.sleep(60)
            follow.cancel()
            await asyncio.wait({follow})
        asked_s = [int(asked.query["timeoutSeconds"]) for asked in wire.watches]
        assert len(asked_s) == TRIES + 1
        for timeout_s, silence_s in zip(asked_s, wire.silences, strict=True):
            assert TIMEOUT_S / 2 <= timeout_s <= TIMEOUT_S
            assert timeout_s < silence_s < TIMEOUT_S + 10


class TestFallingBack:
    async def test_a_server_that_is_behind_what_was_seen_is_listed_anew(
        self, wire: ScriptedWire
    ) -> None:
        identity = Incarnation(SERVER)
        wire.replies += [page(9), page(7, thing("a", 3))]
        wire.streams += [[line("ADDED", thing("b", 10))]]
        wire.newest = 7
        found, error = await told_until_broken(watch_of(wire, incarnation=identity))
        assert found == [LISTING, "listed 9", "team-a/b@10"]
        assert "restored from a backup" in str(error)
        async with watch_of(wire, incarnation=identity)() as events:
            again = await told(events, 3)
        assert again == [f"{LISTING}#1", "team-a/a@3", "listed 7"]

    async def test_one_that_is_where_it_was_is_the_same(self, wire: ScriptedWire) -> None:
        identity = Incarnation(SERVER)
        wire.replies += [page(9), page(9)]
        for _ in range(2):
            async with watch_of(wire, incarnation=identity)() as events:
                assert await told(events, 2) == [LISTING, "listed 9"]

    async def test_another_watch_of_the_kind_counts_too(self, wire: ScriptedWire) -> None:
        identity = Incarnation(SERVER)
        wire.replies += [page(9), page(8)]
        for expected in (LISTING, f"{LISTING}#1"):
            async with watch_of(wire, incarnation=identity)() as events:
                assert await told(events, 1) == [expected]


class TestStreamingList:
    @pytest.fixture
    def wire(self) -> ScriptedWire:
        return ScriptedWire(minor=NEW)

    async def test_a_server_that_can_lists_within_the_watch(self, wire: ScriptedWire) -> None:
        wire.streams += [
            [
                line("ADDED", thing("b", 4)),
                line("ADDED", thing("a", 3)),
                bookmark(9, initial_end=True),
                line("MODIFIED", thing("a", 10)),
            ],
            [line("ADDED", thing("c", 11)), wire.SILENCE],
        ]
        async with watch_of(wire)() as events:
            assert await told(events, 6) == [
                *(LISTING, "team-a/b@4", "team-a/a@3", "listed 9"),
                *("team-a/a@10", "team-a/c@11"),
            ]
        assert wire.calls == []
        first, second = (asked.query for asked in wire.watches)
        assert first["sendInitialEvents"] == "true"
        assert first["resourceVersionMatch"] == "NotOlderThan"
        assert "resourceVersion" not in first
        assert "sendInitialEvents" not in second
        assert second["resourceVersion"] == "10"

    async def test_one_that_breaks_after_it_has_listed_goes_on(self, wire: ScriptedWire) -> None:
        wire.streams += [
            [line("ADDED", thing("a", 3)), bookmark(9, initial_end=True), BROKEN],
            [line("ADDED", thing("b", 10)), wire.SILENCE],
        ]
        async with watch_of(wire)() as events:
            assert await told(events, 4) == [LISTING, "team-a/a@3", "listed 9", "team-a/b@10"]
        assert len(wire.looks) == 1

    async def test_one_that_breaks_before_does_not(self, wire: ScriptedWire) -> None:
        wire.streams += [[line("ADDED", thing("a", 3)), BROKEN]]
        assert await told_until_broken(watch_of(wire)) == ([LISTING, "team-a/a@3"], BROKEN)

    async def test_one_that_refuses_is_listed_in_pages_from_then_on(
        self, wire: ScriptedWire
    ) -> None:
        wire.streams += [[InvalidObjectError("sendInitialEvents is forbidden")]]
        wire.replies += [page(9, thing("a", 3)), page(9)]
        watch = watch_of(wire)
        async with watch() as events:
            assert await told(events, 4) == [LISTING, LISTING, "team-a/a@3", "listed 9"]
        async with watch() as events:
            assert await told(events, 2) == [LISTING, "listed 9"]
        assert len(wire.watches) == 1

    async def test_one_that_ends_in_the_middle_breaks_the_watch(self, wire: ScriptedWire) -> None:
        wire.streams += [[line("ADDED", thing("a", 3)), bookmark(3)]]
        found, error = await told_until_broken(watch_of(wire))
        assert found == [LISTING, "team-a/a@3"]
        assert isinstance(error, WatchBrokenError)
        assert len(wire.watches) == 1

    async def test_one_that_fell_back_is_listed_anew(self, wire: ScriptedWire) -> None:
        identity = Incarnation(SERVER)
        identity.saw(20)
        restored = [line("ADDED", thing("a", 3)), bookmark(9, initial_end=True)]
        wire.streams += [restored, [*restored, wire.SILENCE]]  # type: ignore[list-item]
        found, _ = await told_until_broken(watch_of(wire, incarnation=identity))
        assert found == [LISTING, "team-a/a@3"]
        async with watch_of(wire, incarnation=identity)() as events:
            assert await told(events, 3) == [f"{LISTING}#1", "team-a/a@3", "listed 9"]

    @pytest.mark.parametrize("minor", ["31", "", "x", "4"])
    async def test_an_older_one_is_not_asked_to(self, minor: str) -> None:
        wire = ScriptedWire(minor=minor)
        wire.replies += [page(9)]
        async with watch_of(wire)() as events:
            assert await told(events, 2) == [LISTING, "listed 9"]
        assert wire.watches == []
