"""The watch of a cluster, and the decoder of its objects."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from natsctl import KubeKind, kube
from natsctl.errors import (
    InvalidObjectError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    WatchBrokenError,
)
from natsctl.kubernetes.api_errors import ExpiredError
from natsctl.kubernetes.codec import (
    REMEMBERED_BYTES,
    REMEMBERED_MAX,
    ObjectDecoder,
)
from natsctl.kubernetes.watch import TIMEOUT_S, TRIES, Incarnation, KubeWatch
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

# ---- a watch lists, follows changes, resumes after a break, and never skips an event

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
    return KubeWatch(wire, kind, ObjectDecoder(kind), path, incarnation or Incarnation(SERVER))


async def take(events: AsyncIterator[WatchEvent], count: int) -> list[str]:
    """Return short texts of the next `count` events."""
    return [text_of(await anext(events)) for _ in range(count)]


async def take_until_broken(watch: KubeWatch) -> tuple[list[str], StoreError]:
    """Follow a watch until it breaks, and return its events and the error."""
    texts: list[str] = []
    async with watch() as events:
        try:
            while True:
                texts.append(text_of(await anext(events)))
        except StoreError as error:
            return texts, error


def text_of(event: WatchEvent) -> str:  # type: ignore[return]
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
    async def test_a_list_without_items_is_empty(self, wire: ScriptedWire) -> None:
        wire.replies += [{"metadata": {"resourceVersion": "9"}, "items": None}]
        async with watch_of(wire)() as events:
            assert await take(events, 2) == [LISTING, "listed 9"]

    @pytest.mark.parametrize(
        "invalid_list",
        [
            {"items": []},
            [],
            page(9, {"metadata": {"name": "a"}}),
            page(9, {"metadata": {"name": "a", "resourceVersion": "x"}}),
            {"metadata": {"resourceVersion": ""}, "items": []},
        ],
    )
    async def test_an_invalid_list_breaks_the_watch(
        self, wire: ScriptedWire, invalid_list: object
    ) -> None:
        wire.replies += [invalid_list]
        seen_events, _ = await take_until_broken(watch_of(wire))
        assert [event for event in seen_events if event.startswith("listed")] == []


class TestFollowing:
    @pytest.fixture(autouse=True)
    def _one_thing(self, wire: ScriptedWire) -> None:
        wire.replies += [page(9, thing("a", 3))]

    async def test_the_next_request_resumes_at_the_last_revision(self, wire: ScriptedWire) -> None:
        wire.streams += [
            [line("ADDED", thing("b", 10)), bookmark(15)],
            [line("DELETED", thing("b", 17))],
            [line("ADDED", thing("c", 18)), wire.SILENCE],
        ]
        async with watch_of(wire)() as events:
            await take(events, 3)
            assert await take(events, 3) == ["team-a/b@10", "deleted team-a/b@17", "team-a/c@18"]
        assert [request.query["resourceVersion"] for request in wire.watches] == ["9", "15", "17"]
        assert len(wire.calls) == 1  # the first list

    @pytest.mark.parametrize(
        ("kind", "query"),
        [
            (kube("v1", "Thing", labels={"a": "x"}), {"limit": "1"}),
            (THINGS.only("team-a/a"), {"limit": "1", "fieldSelector": "metadata.name=a"}),
        ],
    )
    async def test_a_resumed_watch_first_reads_the_newest_revision_of_the_server(
        self, wire: ScriptedWire, kind: KubeKind[object], query: dict[str, str]
    ) -> None:
        wire.streams += [[], [line("ADDED", thing("b", 10)), wire.SILENCE]]
        async with watch_of(wire, kind)() as events:
            await take(events, 4)
        assert [look.query for look in wire.looks] == [query]

    async def test_a_broken_request_is_resumed_at_the_last_revision(
        self, wire: ScriptedWire
    ) -> None:
        wire.streams += [
            [line("ADDED", thing("b", 10)), BROKEN],
            [BROKEN],
            [line("ADDED", thing("c", 11)), wire.SILENCE],
        ]
        async with watch_of(wire)() as events:
            await take(events, 3)
            assert await take(events, 2) == ["team-a/b@10", "team-a/c@11"]
        assert len(wire.calls) == 1

    @pytest.mark.parametrize("end", [[], [BROKEN], [StoreError("503")], [b"{"]])
    async def test_the_watch_breaks_after_a_few_failed_requests(
        self, wire: ScriptedWire, end: list[object]
    ) -> None:
        wire.streams += [end] * (TRIES + 1)
        clock = asyncio.get_running_loop().time
        _, error = await take_until_broken(watch_of(wire))
        assert isinstance(error, WatchBrokenError)
        assert not wire.streams
        assert 0.1 < clock() < 1

    async def test_a_long_request_resets_the_count_of_failed_requests(
        self, wire: ScriptedWire
    ) -> None:
        wire.streams += [[BROKEN]] * TRIES
        wire.streams += [[line("ADDED", thing("b", 10)), BROKEN]]
        wire.streams += [[BROKEN]] * (TRIES - 1)
        wire.streams += [[wire.SILENCE]]
        async with watch_of(wire)() as events:
            assert (await take(events, 4))[-1] == "team-a/b@10"
            await asyncio.sleep(60)  # a slow reader of events
            follow = asyncio.create_task(take(events, 1))
            await asyncio.sleep(60)
            assert not wire.streams
            assert not follow.done()
            follow.cancel()
            await asyncio.wait({follow})

    @pytest.mark.parametrize("line", [refusal(410, "Expired"), refusal(500, "InternalError")])
    async def test_an_error_event_breaks_the_watch_immediately(
        self, wire: ScriptedWire, line: object
    ) -> None:
        wire.streams += [[line]]
        seen_events, error = await take_until_broken(watch_of(wire))
        assert seen_events == [LISTING, "team-a/a@3", "listed 9"]
        assert isinstance(error, WatchBrokenError)
        assert "cannot continue the watch: " in str(error)
        assert len(wire.watches) == 1

    @pytest.mark.parametrize(
        "error",
        [ExpiredError("too old"), PermissionDeniedError("no"), StoreMissingError("no kind")],
    )
    async def test_a_rejected_request_breaks_the_watch_immediately(
        self, wire: ScriptedWire, error: StoreError
    ) -> None:
        wire.streams += [[error]]
        assert (await take_until_broken(watch_of(wire)))[1] is error

    async def test_requests_have_random_timeouts_and_later_client_deadlines(
        self, wire: ScriptedWire
    ) -> None:
        wire.streams += [[line("ADDED", thing("b", 10 + n))] for n in range(TRIES)]
        wire.streams += [[wire.SILENCE]]
        async with watch_of(wire)() as events:
            await take(events, 3 + TRIES)
            follow = asyncio.create_task(take(events, 1))
            await asyncio.sleep(60)
            follow.cancel()
            await asyncio.wait({follow})
        timeouts_s = [int(request.query["timeoutSeconds"]) for request in wire.watches]
        assert len(timeouts_s) == TRIES + 1
        for timeout_s, silence_s in zip(timeouts_s, wire.silences, strict=True):
            assert TIMEOUT_S / 2 <= timeout_s <= TIMEOUT_S
            assert timeout_s < silence_s < TIMEOUT_S + 10


class TestRestoredServer:
    async def test_a_server_behind_the_seen_revision_is_relisted_as_a_new_incarnation(
        self, wire: ScriptedWire
    ) -> None:
        identity = Incarnation(SERVER)
        wire.replies += [page(9), page(7, thing("a", 3))]
        wire.streams += [[line("ADDED", thing("b", 10))]]
        wire.newest = 7
        seen_events, error = await take_until_broken(watch_of(wire, incarnation=identity))
        assert seen_events == [LISTING, "listed 9", "team-a/b@10"]
        assert "restored from a backup" in str(error)
        async with watch_of(wire, incarnation=identity)() as events:
            relisted = await take(events, 3)
        assert relisted == [f"{LISTING}#1", "team-a/a@3", "listed 7"]

    async def test_a_server_at_the_seen_revision_keeps_its_incarnation(
        self, wire: ScriptedWire
    ) -> None:
        identity = Incarnation(SERVER)
        wire.replies += [page(9), page(9)]
        for _ in range(2):
            async with watch_of(wire, incarnation=identity)() as events:
                assert await take(events, 2) == [LISTING, "listed 9"]

    async def test_watches_of_a_kind_share_the_seen_revision(self, wire: ScriptedWire) -> None:
        identity = Incarnation(SERVER)
        wire.replies += [page(9), page(8)]
        for expected in (LISTING, f"{LISTING}#1"):
            async with watch_of(wire, incarnation=identity)() as events:
                assert await take(events, 1) == [expected]


class TestStreamingList:
    @pytest.fixture
    def wire(self) -> ScriptedWire:
        return ScriptedWire(minor=NEW)

    async def test_a_watch_that_breaks_after_the_list_is_resumed(self, wire: ScriptedWire) -> None:
        wire.streams += [
            [line("ADDED", thing("a", 3)), bookmark(9, initial_end=True), BROKEN],
            [line("ADDED", thing("b", 10)), wire.SILENCE],
        ]
        async with watch_of(wire)() as events:
            assert await take(events, 4) == [LISTING, "team-a/a@3", "listed 9", "team-a/b@10"]
        assert len(wire.looks) == 1

    @pytest.mark.parametrize(
        "failure",
        [
            [StoreError("500 Internal Server Error")],
            [ExpiredError("too old")],
            [line("ADDED", thing("a", 3)), BROKEN],
            [line("ADDED", thing("a", 3)), refusal(500, "InternalError")],
            [line("ADDED", thing("a", 3)), refusal(410, "Expired")],
            [line("ADDED", thing("a", 3)), b"{"],
            [line("ADDED", thing("a", 3)), bookmark(3)],  # and the end
        ],
    )
    async def test_any_failure_of_a_streaming_list_is_followed_by_a_list_in_pages(
        self, wire: ScriptedWire, failure: list[object]
    ) -> None:
        streamed = [line("ADDED", thing("a", 3)), bookmark(12, initial_end=True)]
        wire.streams += [
            failure,
            [line("ADDED", thing("c", 10)), wire.SILENCE],
            [*streamed, wire.SILENCE],
        ]
        wire.replies += [page(9, thing("b", 3))]
        watch = watch_of(wire)
        async with watch() as events:
            seen = [text_of(await anext(events))]
            while seen[-1] != "team-a/c@10":
                seen.append(text_of(await anext(events)))
        assert seen[-4:] == [LISTING, "team-a/b@3", "listed 9", "team-a/c@10"]
        async with watch() as events:  # the next list is a streaming one again
            assert await take(events, 3) == [LISTING, "team-a/a@3", "listed 12"]
        assert len(wire.calls) == 1

    @pytest.mark.parametrize(
        "error", [PermissionDeniedError("may not watch"), StoreMissingError("no kind")]
    )
    async def test_a_denied_streaming_list_is_not_repeated_in_pages(
        self, wire: ScriptedWire, error: StoreError
    ) -> None:
        wire.streams += [[error]]
        assert await take_until_broken(watch_of(wire)) == ([LISTING], error)
        assert wire.calls == []

    async def test_a_server_that_rejects_a_streaming_list_is_listed_in_pages(
        self, wire: ScriptedWire
    ) -> None:
        wire.streams += [[InvalidObjectError("sendInitialEvents is forbidden")]]
        wire.replies += [page(9, thing("a", 3)), page(9)]
        watch = watch_of(wire)
        async with watch() as events:
            assert await take(events, 4) == [LISTING, LISTING, "team-a/a@3", "listed 9"]
        async with watch() as events:
            assert await take(events, 2) == [LISTING, "listed 9"]
        assert len(wire.watches) == 1

    async def test_a_restored_server_is_relisted_as_a_new_incarnation(
        self, wire: ScriptedWire
    ) -> None:
        identity = Incarnation(SERVER)
        identity.saw(20)
        restored = [line("ADDED", thing("a", 3)), bookmark(9, initial_end=True)]
        wire.streams += [restored, [*restored, wire.SILENCE]]  # type: ignore[list-item]
        seen_events, _ = await take_until_broken(watch_of(wire, incarnation=identity))
        assert seen_events == [LISTING, "team-a/a@3"]
        async with watch_of(wire, incarnation=identity)() as events:
            assert await take(events, 3) == [f"{LISTING}#1", "team-a/a@3", "listed 9"]

    @pytest.mark.parametrize("minor", ["31", "", "x", "4"])
    async def test_an_older_server_is_not_sent_a_streaming_list(self, minor: str) -> None:
        wire = ScriptedWire(minor=minor)
        wire.replies += [page(9)]
        async with watch_of(wire)() as events:
            assert await take(events, 2) == [LISTING, "listed 9"]
        assert wire.watches == []


# ---- the decoding of objects in a cluster: our type first, no `managedFields`, all other bytes

MANAGED: list[Any] = [{"manager": "x", "fieldsV1": {"f:data": {}}}]
METADATA: dict[str, Any] = {"name": "web", "namespace": "shop", "resourceVersion": "17"}
DATA = {"text": 'a "managedFields":[] in a text', "é": "ü"}
TYPE = {"kind": "ConfigMap", "apiVersion": "v1"}
KIND = kube("v1", "ConfigMap")

encode = msgspec.json.encode


@pytest.mark.parametrize(
    "document",
    [
        encode({**TYPE, "metadata": METADATA, "data": DATA}),
        encode({**TYPE, "metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA}),
        encode({**TYPE, "metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA}) + b"\n",
        encode({**TYPE, "metadata": {"managedFields": MANAGED, **METADATA}, "data": DATA}),
        encode({**TYPE, "metadata": {**METADATA, "managedFields": None}, "data": DATA}),
        encode({"metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA}),
        encode({"metadata": METADATA, "data": DATA}),
        encode({"metadata": METADATA, "data": DATA, "kind": "", "apiVersion": ""}),
        encode({"metadata": METADATA, "data": DATA, **TYPE}),
        encode({"data": DATA, "metadata": {**METADATA, "managedFields": MANAGED}, **TYPE}),
        encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA, "data": DATA}),
        msgspec.json.format(
            encode({**TYPE, "metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA})
        ),
    ],
)
@pytest.mark.parametrize("form", [bytes, msgspec.Raw])
def test_each_form_of_an_object_is_decoded_to_the_same_object(document: bytes, form: Any) -> None:
    stored = ObjectDecoder(KIND).stored(form(document))
    assert (stored.key, stored.revision) == ("shop/web", 17)
    assert msgspec.json.decode(stored.value) == {**TYPE, "metadata": METADATA, "data": DATA}
    assert stored.value.startswith(b'{"apiVersion":"v1","kind":"ConfigMap",')


def test_a_copy_of_the_managed_fields_elsewhere_in_the_object_is_kept() -> None:
    template = {"metadata": {"name": "x", "managedFields": MANAGED}}
    metadata = {**METADATA, "managedFields": MANAGED}
    document = encode({**TYPE, "metadata": metadata, "spec": {"template": template}})
    stored = ObjectDecoder(KIND).stored(document)
    assert msgspec.json.decode(stored.value) == {
        **TYPE,
        "metadata": METADATA,
        "spec": {"template": template},
    }


def test_a_kind_with_managed_fields_keeps_them() -> None:
    metadata = {**METADATA, "managedFields": MANAGED}
    document = encode({**TYPE, "metadata": metadata})
    stored = ObjectDecoder(kube("v1", "ConfigMap", managed_fields=True)).stored(document)
    assert msgspec.json.decode(stored.value) == {**TYPE, "metadata": metadata}


def test_a_kind_of_which_only_metadata_is_watched_keeps_no_other_field() -> None:
    document = encode({**TYPE, "metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA})
    stored = ObjectDecoder(kube("v1", "ConfigMap", metadata_only=True)).stored(document)
    assert msgspec.json.decode(stored.value) == {**TYPE, "metadata": METADATA}


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"web","resourceVersion":"1"}',
        encode({**TYPE, "metadata": {"name": "web"}}),
        encode({**TYPE, "metadata": {"name": "web", "resourceVersion": "x"}}),
        encode({**TYPE, "metadata": {"resourceVersion": "1"}}),
        encode(TYPE),
    ],
)
def test_an_invalid_object_is_an_error_of_the_store(document: bytes) -> None:
    with pytest.raises(StoreError, match="invalid ConfigMap"):
        ObjectDecoder(KIND).stored(document)


def test_the_metadata_of_each_value_is_its_own() -> None:
    first_value, second_value = (
        encode({"metadata": {**METADATA, "uid": uid}}) for uid in ("1", "2")
    )
    uids = [
        KIND.metadata(value).uid
        for value in (first_value, first_value, second_value, second_value, first_value)
    ]
    assert uids == ["1", "1", "2", "2", "1"]
    with pytest.raises(InvalidObjectError, match="invalid metadata"):
        kube("v1", "ConfigMap").metadata(b"")


def served(revision: int, text: str = "") -> bytes:
    metadata = {**METADATA, "resourceVersion": str(revision)}
    return encode({**TYPE, "metadata": metadata, "data": {"text": text}})


def test_the_response_and_the_event_of_a_write_are_decoded_once() -> None:
    decoder = ObjectDecoder(KIND)
    first = decoder.sent(served(17) + b"\n")
    assert decoder.sent(served(18)).revision == 18
    assert decoder.sent(served(17)) is first


def test_an_object_that_is_sent_once_more_is_decoded_again() -> None:
    decoder = ObjectDecoder(KIND)
    first, second, third = (decoder.sent(served(17)) for _ in range(3))
    assert second is first
    assert third == first
    assert third is not first


def test_only_the_newest_objects_are_remembered() -> None:
    decoder = ObjectDecoder(KIND)
    first = [decoder.sent(served(revision)) for revision in range(REMEMBERED_MAX + 1)]
    assert decoder.sent(served(REMEMBERED_MAX)) is first[-1]
    assert decoder.sent(served(1)) is first[1]
    assert decoder.sent(served(0)) is not first[0]


def test_a_large_object_is_not_remembered() -> None:
    decoder, large = ObjectDecoder(KIND), served(17, "x" * REMEMBERED_BYTES)
    assert decoder.sent(large) is not decoder.sent(large)
