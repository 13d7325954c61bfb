"""A watch continues after it broke, and lists its bucket again unless it proves what it has seen.

What a watch misses is done between two watches of the same reader.
"""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from itertools import count, product
from typing import Any, Protocol

import pytest

from natsctl import connect, kv
from natsctl.errors import StoreDiffersError
from natsctl.model.store import Listed, Stores
from tests.support.clients.nats_admin import Admin
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy
from tests.support.stores.reader import Reader

pytestmark = pytest.mark.usefixtures("patient")

DAY_NS = 24 * 3600 * 10**9
ACK = re.compile(rb"(\$JS\.ACK\.[^.\s]+\.[^.\s]+\.\d+\.)(\d+)(\.\d+\.)(\d+)\.")  # sequence, time

Kind = dict[str, Any]

KEYS = [f"k.{number}" for number in range(40)]  # the proof notes 32 of them
NUMBERS = count()

ONE: Kind = {"history": 1}
HISTORY: Kind = {"history": 5}
PART: Kind = {"history": 1, "keys": "k.>"}
PARTS: Kind = {"history": 1, "keys": ["k.>", "other.*"]}

WRITTEN: dict[str, list[str]] = {
    "nothing": [],
    "more keys": ["k.a", "k.b", "k.c", "k.d"],
    "the same keys": ["k.new", "k.1"],
    "fewer keys": ["k.1", "k.2"],
    "as many keys": ["k.other", "k.1"],
}
"""What is written into a bucket after two writes were lost."""


class Yesterday(CutProxy):
    """Subtracts a day from the times of messages *after* a sequence, as a clock set back would."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.after = 1 << 62
        self.changed = 0

    def changed_data(self, data: bytes) -> bytes:
        return ACK.sub(self._changed, data)

    def _changed(self, match: re.Match[bytes]) -> bytes:
        if int(match[2]) <= self.after:
            return match[0]
        self.changed += 1
        return match[1] + match[2] + match[3] + b"%d" % (int(match[4]) - DAY_NS) + b"."


class Bed:
    """A bucket with `KEYS`, its reader, and an administrator."""

    def __init__(self, nats: Stores, admin: Admin, options: Kind) -> None:
        self.bucket = f"things{next(NUMBERS)}"
        self.kind = kv(bytes, bucket=self.bucket, **options)
        self.nats = nats
        self.admin = admin

    async def begin(self) -> None:
        """Write the keys, and show them to the reader."""
        self.reader = Reader(await self.nats.open(self.kind))
        await self.put(*KEYS)
        await self.reader.catch_up()
        assert len(self.reader.incarnations) == 1

    async def put(self, *keys: str) -> None:
        for key in keys:
            await self.admin.put(self.bucket, key, {"key": key})

    async def update(self, **changes: object) -> None:
        config = (await self.admin.info(self.bucket))["config"]
        await self.admin.api(f"STREAM.UPDATE.KV_{self.bucket}", {**config, **changes})

    async def continues(self, events: int) -> None:
        """Check that the reader continues with so many events, and equals the bucket."""
        lists = len(self.reader.incarnations)
        await self.reader.catch_up()
        assert len(self.reader.incarnations) == lists
        assert self.reader.events == events
        await self.equals()

    async def lists(self, *, anew: bool = False) -> None:
        """Check that the reader lists, *anew* as another bucket, and equals the bucket."""
        lists = len(self.reader.incarnations)
        await self.reader.catch_up()
        assert len(self.reader.incarnations) == lists + 1
        assert (self.reader.incarnations[-1] != self.reader.incarnations[-2]) is anew
        await self.equals()

    async def equals(self) -> None:
        entries = (await self.admin.entries(self.bucket)).items()
        stored = {key: entry.value for key, entry in entries if not entry.marker}
        assert self.reader.objects == {k: v for k, v in stored.items() if self.kind.holds(k)}


class Begin(Protocol):
    async def __call__(self, kind: Kind, **stream: object) -> Bed: ...


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("shared") / "nats")
    yield server
    server.kill()


@pytest.fixture
async def server(shared: NatsServer) -> NatsServer:
    if not shared.running:
        await shared.start()
    return shared


@pytest.fixture
async def begin(server: NatsServer) -> AsyncIterator[Begin]:
    async with connect(server.url) as nats, Admin(server.url) as admin:

        async def begin(kind: Kind, **stream: object) -> Bed:
            bed = Bed(nats, admin, kind)
            if stream:
                await admin.create(bed.bucket, **stream)
            await bed.begin()
            return bed

        yield begin


kinds = pytest.mark.parametrize(
    "kind", [ONE, HISTORY, PART, PARTS], ids=["one", "history", "part", "parts"]
)


class TestContinued:
    @kinds
    async def test_a_watch_continues_without_a_list(self, begin: Begin, kind: Kind) -> None:
        bed = await begin(kind)
        await bed.continues(0)
        await bed.put("k.3", "k.new")
        await bed.admin.delete(bed.bucket, "k.5")
        await bed.continues(3)
        await bed.continues(0)

    async def test_a_watch_continues_beside_busy_keys_and_after_a_kill_of_the_server(
        self, server: NatsServer, begin: Begin
    ) -> None:
        bed = await begin(ONE)
        await bed.put(*KEYS[-31:])
        await bed.continues(31)
        for _ in range(20):
            await bed.put("k.1", "k.2")
            await bed.continues(2)
        server.kill()
        await server.start()
        await bed.put("k.new")
        await bed.continues(1)

    async def test_a_clock_that_was_set_back_changes_nothing(
        self, server: NatsServer, begin: Begin
    ) -> None:
        """The proxy subtracts a day from the times of what is written after a moment."""
        bed = await begin(ONE)
        async with Yesterday(server.url) as proxy, connect(proxy.url) as nats:
            bed.reader = Reader(await nats.open(bed.kind))
            await bed.reader.catch_up()
            proxy.after = (await bed.admin.info(bed.bucket))["state"]["last_seq"]
            await bed.put("k.1", "k.2", "k.new")
            await bed.continues(3)
            assert proxy.changed > 0
            await bed.put("k.3")
            await bed.continues(1)
            await bed.continues(0)
            await bed.admin.purge(bed.bucket, "k.3")
            await bed.lists()

    async def test_a_list_of_another_reader_beside_the_watch_changes_nothing(
        self, begin: Begin
    ) -> None:
        bed = await begin(ONE)
        store = bed.reader.store
        async with store.watch(bed.reader.shown) as events:
            assert isinstance(await anext(events), Listed)
            following = asyncio.ensure_future(anext(events))
            await Reader(store).catch_up()
            following.cancel()
            await asyncio.wait((following,))
        await bed.continues(0)


class TestListed:
    @kinds
    async def test_after_purges(self, begin: Begin, kind: Kind) -> None:
        bed = await begin(kind)
        await bed.admin.purge(bed.bucket, "k.7")
        await bed.lists()
        await bed.admin.purge(bed.bucket, "k.8")
        await bed.put("k.new")  # makes up for it
        await bed.lists()
        await bed.admin.purge(bed.bucket, "k.new")  # the last message
        await bed.lists()
        await bed.admin.purge(bed.bucket)
        await bed.lists()

    async def test_after_all_that_was_seen_last_was_replaced_or_removed(self, begin: Begin) -> None:
        bed = await begin(ONE)
        await bed.put(*KEYS)
        await bed.lists()
        await bed.update(max_msgs=30, discard="old")
        await bed.lists()

    async def test_a_recreated_bucket(self, begin: Begin) -> None:
        bed = await begin(ONE)
        await bed.admin.restore(await bed.admin.drop(bed.bucket))
        await bed.put(*KEYS)
        await bed.lists(anew=True)

    async def test_a_bucket_whose_messages_can_be_deleted(self, begin: Begin) -> None:
        bed = await begin(HISTORY, deny_delete=False)
        await bed.put("k.3")
        await bed.reader.catch_up()
        newest = (await bed.admin.entry(bed.bucket, "k.3")).revision
        await bed.admin.api(f"STREAM.MSG.DELETE.KV_{bed.bucket}", {"seq": newest})
        await bed.lists()

    async def test_buckets_restored_to_an_older_state(
        self, server: NatsServer, begin: Begin
    ) -> None:
        """Two writes are lost, and others may get their sequences."""
        kinds = {"one": ONE, "history": HISTORY, "part": PART}
        beds = {(kind, name): await begin(kinds[kind]) for kind, name in product(kinds, WRITTEN)}
        replaced = await begin(ONE)
        backup = server.folder.with_name("backup")
        await server.stop()
        shutil.copytree(server.folder, backup)
        await server.start()
        for bed in (*beds.values(), replaced):
            await bed.put("k.new", "k.1")
            await bed.reader.catch_up()
        await server.stop()
        shutil.rmtree(server.folder)
        shutil.move(backup, server.folder)
        await server.start()
        for (kind, name), bed in beds.items():
            await bed.put(*WRITTEN[name])
            print(f"{name} in {kind}")  # what a failure is about
            await bed.lists(anew=True)
        await replaced.put(*5 * ["k.1"])  # nothing shows who had the sequences
        await replaced.lists()

    async def test_a_transform_of_the_stream_itself_is_refused(self, begin: Begin) -> None:
        bed = await begin(ONE)
        transform = {"src": f"$KV.{bed.bucket}.>", "dest": "$KV.others.>"}
        await bed.update(subject_transform=transform)
        with pytest.raises(StoreDiffersError, match=r"\$KV.others"):
            async with bed.reader.store.watch():
                """The bucket would look as if nobody wrote to it."""
        await bed.put("k.1")  # stored as another subject
        await bed.update(subject_transform=None)
        await bed.put("k.2")
        await bed.lists()

    async def test_a_mirror_whose_subjects_are_renamed(self, begin: Begin) -> None:
        bed = await begin(ONE)
        copy = f"{bed.bucket}copy"

        async def mirror(**transforms: object) -> None:
            origin = {"name": f"KV_{bed.bucket}", **transforms}
            config = {"name": f"KV_{copy}", "mirror": origin}
            await bed.admin.api(f"STREAM.CREATE.KV_{copy}", config)
            await eventually(mirrored)

        async def mirrored() -> bool:
            return bool((await bed.admin.info(copy))["state"]["messages"] == len(KEYS))

        transform = {"src": f"$KV.{bed.bucket}.>", "dest": "$KV.copied.>"}
        await mirror(subject_transforms=[transform])
        reader = Reader(await bed.nats.open(kv(bytes, bucket=copy, create=False)))
        await reader.catch_up()
        assert reader.objects.keys() == set(KEYS)
        await bed.admin.drop(copy)
        await mirror()
        await reader.catch_up()
        assert len(reader.incarnations) == 2
        assert reader.objects.keys() == set(KEYS)
