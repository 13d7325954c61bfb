"""The watch of a cluster, and the decoder of its objects."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from natsctl import KubeKind, kube
from natsctl.errors import StoreError, WatchBrokenError
from natsctl.kubernetes.api_errors import ExpiredError
from natsctl.kubernetes.codec import REMEMBERED_MAX, ObjectDecoder
from natsctl.kubernetes.transport import Reply, Transport
from natsctl.kubernetes.watch import TRIES, Incarnation, KubeWatch
from natsctl.model.store import Applied, Deleted, Listed, Listing, WatchEvent

OLD, NEW = "20", "32+"  # minor versions, without and with lists within watches


class ScriptedWire(Transport):
    """A wire that returns the next of `replies` for a call and of `streams` for a stream.

    An exception among them is raised. A stream ends after its last line, unless that line is
    `SILENCE`: then it stays open. A list with limit 1 has revision `newest` and is recorded in
    `looks`. `minor` is the minor version that the server reports.
    """

    SILENCE = b"..."

    def __init__(self, *, minor: str = OLD) -> None:
        self.replies: deque[object] = deque()
        self.streams: deque[list[object]] = deque()
        self.calls: list[dict[str, str]] = []  # the queries
        self.looks: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.newest = 1_000_000
        self._minor = minor

    async def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, **_how: Any
    ) -> Reply:
        del method
        if path == "/version":
            return _reply({"major": "1", "minor": self._minor})
        if query is not None and query.get("limit") == "1":
            self.looks.append(dict(query))
            return _reply(page(self.newest))
        self.calls.append(dict(query or {}))
        response = self.replies.popleft()
        if isinstance(response, StoreError):
            raise response
        return _reply(response)

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], accept: str = "", silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        del path
        self.watches.append(dict(query))
        lines = self.streams.popleft()
        if lines and isinstance(lines[0], StoreError):
            raise lines[0]
        yield self._lines(lines)

    async def _lines(self, lines: list[object]) -> AsyncIterator[bytes]:
        for line in lines:
            await asyncio.sleep(0)
            if isinstance(line, StoreError):
                raise line
            if line == self.SILENCE:
                await asyncio.Event().wait()
            yield line if isinstance(line, bytes) else msgspec.json.encode(line)


def _reply(response: object) -> Reply:
    return Reply(200, msgspec.json.encode(response))


def thing(name: str, revision: int) -> dict[str, Any]:
    """Return an object as the server sends it."""
    managed = [{"manager": "people", "operation": "Update"}]
    version = str(revision)
    metadata = {"name": name, "namespace": "team-a", "resourceVersion": version}
    return {"metadata": {**metadata, "managedFields": managed}}


def page(revision: int, *items: object) -> dict[str, Any]:
    """Return a page of a list."""
    metadata = {"resourceVersion": str(revision)}
    return {"kind": "ThingList", "apiVersion": "v1", "metadata": metadata, "items": items}


def line(type: str, obj: object) -> dict[str, object]:  # noqa: A002 - the name of the field
    """Return a line of a watch."""
    return {"type": type, "object": obj}


def bookmark(revision: int, *, initial_end: bool = False) -> dict[str, object]:
    """Return a bookmark line with a revision."""
    metadata: dict[str, object] = {"resourceVersion": str(revision)}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return line("BOOKMARK", {"metadata": metadata})


def refusal(code: int, reason: str) -> dict[str, object]:
    """Return the error line with which the server ends a watch."""
    return line("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": reason})


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
    known = incarnation or Incarnation(SERVER)
    return KubeWatch(wire, kind, ObjectDecoder(kind), known, path=path, forget=lambda: None)


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
async def test_an_invalid_list_breaks_the_watch(wire: ScriptedWire, invalid_list: object) -> None:
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
        assert [query["resourceVersion"] for query in wire.watches] == ["9", "15", "17"]
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
        assert wire.looks == [query]

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


async def test_a_server_behind_the_seen_revision_is_relisted_as_a_new_incarnation(
    wire: ScriptedWire,
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
    failure: list[object],
) -> None:
    wire = ScriptedWire(minor=NEW)
    streamed = [line("ADDED", thing("a", 3)), bookmark(12, initial_end=True)]
    wire.streams += [
        failure,
        [line("ADDED", thing("c", 10)), ScriptedWire.SILENCE],
        [*streamed, ScriptedWire.SILENCE],
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


# ---- the decoding of objects in a cluster: our type first, no `managedFields`, all other bytes

MANAGED: list[Any] = [{"manager": "x", "fieldsV1": {"f:data": {}}}]
METADATA: dict[str, Any] = {"name": "web", "namespace": "shop", "resourceVersion": "17"}
DATA = {"text": 'a "managedFields":[] in a text', "é": "ü"}
TYPE = {"kind": "ConfigMap", "apiVersion": "v1"}
KIND = kube("v1", "ConfigMap")

encode = msgspec.json.encode


OURS = {"metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA}


@pytest.mark.parametrize(
    "document",
    [
        encode({**TYPE, "metadata": METADATA, "data": DATA}),
        encode({**TYPE, **OURS}),
        encode({**TYPE, **OURS}) + b"\n",
        encode({**TYPE, "metadata": {"managedFields": MANAGED, **METADATA}, "data": DATA}),
        encode({**TYPE, "metadata": {**METADATA, "managedFields": None}, "data": DATA}),
        encode(OURS),
        encode({"metadata": METADATA, "data": DATA}),
        encode({"metadata": METADATA, "data": DATA, "kind": "", "apiVersion": ""}),
        encode({"metadata": METADATA, "data": DATA, **TYPE}),
        encode({"data": DATA, **OURS, **TYPE}),
        encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA, "data": DATA}),
        msgspec.json.format(encode({**TYPE, **OURS})),
    ],
)
@pytest.mark.parametrize("form", [bytes, msgspec.Raw])
def test_each_form_of_an_object_is_decoded_to_the_same_object(document: bytes, form: Any) -> None:
    stored = ObjectDecoder(KIND).stored(form(document))
    assert (stored.key, stored.revision) == ("shop/web", 17)
    assert msgspec.json.decode(stored.value) == {**TYPE, "metadata": METADATA, "data": DATA}
    assert stored.value.startswith(b'{"apiVersion":"v1","kind":"ConfigMap",')


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


def served(revision: int, text: str = "") -> bytes:
    metadata = {**METADATA, "resourceVersion": str(revision)}
    return encode({**TYPE, "metadata": metadata, "data": {"text": text}})


def test_only_the_newest_objects_are_remembered() -> None:
    decoder = ObjectDecoder(KIND)
    first = [decoder.sent(served(revision)) for revision in range(REMEMBERED_MAX + 1)]
    assert decoder.sent(served(REMEMBERED_MAX)) is first[-1]
    assert decoder.sent(served(1)) is first[1]
    assert decoder.sent(served(0)) is not first[0]
