"""A watch continues after it broke, and lists its bucket again unless it proves what it has seen.

What a watch misses is done between two watches of the same reader.
"""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from natsctl import KvKind, connect, kv
from natsctl.errors import StoreDiffersError
from natsctl.model.store import Listed, Store, Stores
from tests.support.clients.nats_admin import Admin
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy
from tests.support.stores.reader import Reader

DAY_NS = 24 * 3600 * 10**9
ACK = re.compile(rb"(\$JS\.ACK\.[^.\s]+\.[^.\s]+\.\d+\.)(\d+)(\.\d+\.)(\d+)\.")  # sequence, time

KEYS = [f"k.{number}" for number in range(60)]
THINGS = kv(bytes, bucket="things", history=1)
VERSIONS = kv(bytes, bucket="things", history=5)
PART = kv(bytes, bucket="things", history=1, keys="k.>")
PARTS = kv(bytes, bucket="things", history=1, keys=["k.>", "other.*"])


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
    """A bucket of things, its reader, and an administrator."""

    def __init__(self, server: NatsServer, nats: Stores, admin: Admin) -> None:
        self.server = server
        self.admin = admin
        self._nats = nats

    async def begin(self, kind: KvKind[bytes]) -> None:
        self.kind = kind
        self.reader = Reader(await self._nats.open(kind))
        await self.put(*KEYS)
        await self.reader.catch_up()
        assert len(self.reader.incarnations) == 1

    async def open(self, kind: KvKind[bytes]) -> Store:
        return await self._nats.open(kind)

    async def put(self, *keys: str) -> None:
        for key in keys:
            await self.admin.put("things", key, {"key": key})

    async def update(self, **changes: object) -> None:
        """Change the stream's configuration."""
        config = (await self.admin.info("things"))["config"]
        await self.admin.api("STREAM.UPDATE.KV_things", {**config, **changes})

    async def restore(self, then: Callable[[], Awaitable[object]], lost: list[str]) -> None:
        """Write *lost* keys, restore the files from before that, and do something."""
        backup = self.server.folder.with_name("backup")
        await self.server.stop()
        shutil.copytree(self.server.folder, backup)
        await self.server.start()
        await self.put(*lost)
        await self.reader.catch_up()
        await self.server.stop()
        shutil.rmtree(self.server.folder)
        shutil.move(backup, self.server.folder)
        await self.server.start()
        await then()

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
        entries = (await self.admin.entries("things")).items()
        stored = {key: entry.value for key, entry in entries if not entry.marker}
        assert self.reader.objects == {k: v for k, v in stored.items() if self.kind.holds(k)}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def bed(server: NatsServer) -> AsyncIterator[Bed]:
    async with connect(server.url) as nats, Admin(server.url) as admin:
        yield Bed(server, nats, admin)


kinds = pytest.mark.parametrize(
    "kind", [THINGS, VERSIONS, PART, PARTS], ids=["one", "history", "part", "parts"]
)


class TestContinued:
    @kinds
    async def test_a_watch_continues_without_a_list(self, bed: Bed, kind: KvKind[bytes]) -> None:
        await bed.begin(kind)
        await bed.continues(0)
        await bed.put("k.3", "k.new")
        await bed.admin.delete("things", "k.5")
        await bed.continues(3)
        await bed.continues(0)

    async def test_a_watch_continues_after_a_kill_of_the_server(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        bed.server.kill()
        await bed.server.start()
        await bed.put("k.new")
        await bed.continues(1)

    async def test_a_watch_continues_after_its_consumer_was_lost(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        for name in (await bed.admin.consumers()).get("KV_things", []):
            await bed.admin.api(f"CONSUMER.DELETE.KV_things.{name}")
        await bed.continues(0)

    async def test_a_watch_continues_behind_keys_that_were_replaced(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        replaced = KEYS[-31:]
        await bed.put(*replaced)
        await bed.continues(31)

    async def test_a_clock_that_was_set_back_changes_nothing(self, bed: Bed) -> None:
        """The proxy subtracts a day from the times of what is written after a moment."""
        await bed.begin(THINGS)
        async with Yesterday(bed.server.url) as proxy, connect(proxy.url) as nats:
            bed.reader = Reader(await nats.open(THINGS))
            await bed.reader.catch_up()
            proxy.after = (await bed.admin.info("things"))["state"]["last_seq"]
            await bed.put("k.1", "k.2", "k.new")
            await bed.continues(3)
            assert proxy.changed > 0
            await bed.put("k.3")
            await bed.continues(1)
            await bed.continues(0)
            await bed.admin.purge("things", "k.3")
            await bed.lists()

    async def test_a_list_of_another_reader_beside_the_watch_changes_nothing(
        self, bed: Bed
    ) -> None:
        await bed.begin(THINGS)
        store = bed.reader.store
        async with store.watch(bed.reader.shown) as events:
            assert isinstance(await anext(events), Listed)
            following = asyncio.ensure_future(anext(events))
            await Reader(store).catch_up()
            following.cancel()
            await asyncio.wait((following,))
        await bed.continues(0)

    async def test_a_few_busy_keys_replace_no_proof(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        for _ in range(20):
            await bed.put("k.1", "k.2")
            await bed.continues(2)


class TestListed:
    @kinds
    async def test_after_a_purge_by_an_administrator(self, bed: Bed, kind: KvKind[bytes]) -> None:
        await bed.begin(kind)
        await bed.admin.purge("things", "k.7")
        await bed.lists()

    @kinds
    async def test_after_a_purge_that_a_new_key_makes_up_for(
        self, bed: Bed, kind: KvKind[bytes]
    ) -> None:
        await bed.begin(kind)
        await bed.admin.purge("things", "k.7")
        await bed.put("k.new")
        await bed.lists()

    async def test_after_a_purge_of_the_last_message(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        await bed.admin.purge("things", KEYS[-1])
        await bed.lists()

    async def test_after_a_purge_of_everything(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        await bed.admin.purge("things")
        await bed.lists()

    async def test_after_a_lower_limit_of_messages(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        await bed.update(max_msgs=40, discard="old")
        await bed.lists()

    async def test_after_all_that_was_seen_last_was_replaced(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        await bed.put(*KEYS)
        await bed.lists()

    async def test_a_recreated_bucket(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        await bed.admin.restore(await bed.admin.drop("things"))
        await bed.put(*KEYS)
        await bed.lists(anew=True)

    async def test_a_bucket_whose_messages_can_be_deleted(self, bed: Bed) -> None:
        await bed.admin.create("things", max_msgs_per_subject=5, deny_delete=False)
        await bed.begin(VERSIONS)
        await bed.put("k.3")
        await bed.reader.catch_up()
        newest = (await bed.admin.entry("things", "k.3")).revision
        await bed.admin.api("STREAM.MSG.DELETE.KV_things", {"seq": newest})
        await bed.lists()

    async def test_a_bucket_restored_to_an_older_state(self, bed: Bed) -> None:
        await bed.begin(THINGS)

        async def nothing() -> None:
            """Write nothing after the restore."""

        await bed.restore(nothing, lost=["k.new", "k.1"])
        await bed.lists(anew=True)

    @pytest.mark.parametrize("kind", [THINGS, VERSIONS, PART], ids=["one", "history", "part"])
    @pytest.mark.parametrize(
        "written",
        [["k.a", "k.b", "k.c", "k.d"], ["k.new", "k.1"], ["k.1", "k.2"], ["k.other", "k.1"]],
        ids=["more keys", "the same keys", "fewer keys", "as many keys"],
    )
    async def test_a_bucket_restored_to_an_older_state_with_newer_writes(
        self, bed: Bed, kind: KvKind[bytes], written: list[str]
    ) -> None:
        await bed.begin(kind)
        await bed.restore(lambda: bed.put(*written), lost=["k.new", "k.1"])
        await bed.lists(anew=True)

    async def test_a_bucket_whose_lost_writes_were_all_replaced(self, bed: Bed) -> None:
        """The sequences of what was seen last are free again, and nothing shows who had them."""
        await bed.begin(THINGS)

        async def write() -> None:
            for _ in range(5):
                await bed.put("k.1")

        await bed.restore(write, lost=["k.new", "k.1"])
        await bed.lists()

    async def test_a_transform_of_the_stream_itself_is_refused(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        transform = {"src": "$KV.things.>", "dest": "$KV.others.>"}
        await bed.update(subject_transform=transform)
        with pytest.raises(StoreDiffersError, match=r"\$KV.others"):
            async with bed.reader.store.watch():
                """The bucket would look as if nobody wrote to it."""
        await bed.put("k.1")  # stored as another subject
        await bed.update(subject_transform=None)
        await bed.put("k.2")
        await bed.lists()

    async def test_a_mirror_whose_subjects_are_renamed(self, bed: Bed) -> None:
        await bed.begin(THINGS)
        transforms = [{"src": "$KV.things.>", "dest": "$KV.copied.>"}]
        mirror: dict[str, Any] = {"name": "KV_things", "subject_transforms": transforms}
        await bed.admin.api("STREAM.CREATE.KV_copy", {"name": "KV_copy", "mirror": mirror})
        reader = Reader(await bed.open(kv(bytes, bucket="copy", create=False)))
        await eventually(lambda: mirrored(bed.admin))
        await reader.catch_up()
        assert reader.objects.keys() == set(KEYS)
        await bed.admin.api("STREAM.DELETE.KV_copy")
        del mirror["subject_transforms"]
        await bed.admin.api("STREAM.CREATE.KV_copy", {"name": "KV_copy", "mirror": mirror})
        await eventually(lambda: mirrored(bed.admin))
        await reader.catch_up()
        assert len(reader.incarnations) == 2
        assert reader.objects.keys() == set(KEYS)


async def mirrored(admin: Admin) -> bool:
    return bool((await admin.info("copy"))["state"]["messages"] == len(KEYS))
