"""A mirrored or sourced bucket is read completely or refused. It never appears empty."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from natsctl import connect, kv
from natsctl.errors import NotFoundError, StoreDiffersError, StoreError
from natsctl.model.store import Applied, Deleted
from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.stores.backends import listing, note, put, take

ORIGIN = kv(bytes, bucket="origin")
COPY = kv(bytes, bucket="copy")


@pytest.fixture
async def nats(nats_server: NatsServer) -> AsyncIterator[Nats]:
    async with connect(nats_server.url, verify_s=0.5) as nats:
        yield nats


@pytest.fixture
def natsctl(tmp_path: Path, nats_server: NatsServer) -> Natsctl:
    return Natsctl(tmp_path, nats_server.url)


async def create_stream(nats: Nats, bucket: str, **config: Any) -> None:
    await nats.connection.api(f"STREAM.CREATE.KV_{bucket}", {"name": f"KV_{bucket}", **config})


async def mirror(nats: Nats, bucket: str, origin: str, **options: Any) -> None:
    await create_stream(
        nats, bucket, mirror={"name": f"KV_{origin}", **options}, mirror_direct=True
    )


async def caught_up(nats: Nats, bucket: str, messages: int) -> None:
    async def has_messages() -> bool:
        info = await nats.connection.api(f"STREAM.INFO.KV_{bucket}")
        return bool(info["state"]["messages"] >= messages)

    await eventually(has_messages)


async def test_a_mirror_shows_its_origin_and_follows_it(nats: Nats, natsctl: Natsctl) -> None:
    """So does a mirror of the mirror."""
    origin = await nats.open(ORIGIN)
    stored = await put(origin, "a")
    await mirror(nats, "copy", "origin")
    await mirror(nats, "second", "copy")
    for bucket in ("copy", "second"):
        await caught_up(nats, bucket, 1)
    store = await nats.open(COPY)
    assert await store.get("a") == stored
    assert await store.history("a") == [stored]
    assert await (await nats.open(kv(bytes, bucket="second"))).get("a") == stored
    assert await natsctl.done("get", "copy", "-o", "name") == "copy/a\n"
    async with store.watch() as events:
        assert (await listing(events))[1:-1] == [Applied(stored)]
        changed = await put(origin, "a", "again")
        assert await take(events, 1) == [Applied(changed)]
        revision = await origin.delete("a")
        assert await take(events, 1) == [Deleted("a", revision)]


async def test_a_mirror_that_makes_other_keys_by_a_function_is_refused(nats: Nats) -> None:
    await put(await nats.open(ORIGIN), "a")
    for dest in ("$KV.copy.{{partition(3,1)}}.{{wildcard(1)}}", "$KV.copy.x.$1"):
        renamed = [{"src": "$KV.origin.*", "dest": dest}]
        await mirror(nats, "copy", "origin", subject_transforms=renamed)
        with pytest.raises(StoreDiffersError, match="bucket copy renames its keys to"):
            await nats.open(COPY)
        await nats.connection.api("STREAM.DELETE.KV_copy")
        sources = [{"name": "KV_origin", "subject_transforms": renamed}]
        await create_stream(nats, "copy", subjects=["$KV.copy.>"], sources=sources)
        with pytest.raises(StoreDiffersError, match="bucket copy renames its keys to"):
            await nats.open(COPY)
        await nats.connection.api("STREAM.DELETE.KV_copy")


async def test_no_write_to_a_mirror_reaches_its_origin(nats: Nats) -> None:
    origin = await nats.open(ORIGIN)
    stored = await put(origin, "a")
    await mirror(nats, "copy", "origin")
    await caught_up(nats, "copy", 1)
    store = await nats.open(COPY)
    refused = "bucket copy is a read-only mirror of origin: write to origin"
    for write in (
        store.create("b", note("b")),
        store.update("a", note("b"), revision=stored.revision),
        store.delete("a"),
    ):
        with pytest.raises(StoreError, match=refused):
            await write
    assert await origin.get("a") == stored
    with pytest.raises(NotFoundError):
        await origin.get("b")


async def test_a_bucket_that_renames_keys_to_its_own_name_is_read(nats: Nats) -> None:
    """A sourced one is written too."""
    stored = await put(await nats.open(ORIGIN), "a")
    renamed = [{"src": "$KV.origin.>", "dest": "$KV.copy.>"}]
    await mirror(nats, "copy", "origin", subject_transforms=renamed)
    await caught_up(nats, "copy", 1)
    assert await (await nats.open(COPY)).get("a") == stored
    await nats.connection.api("STREAM.DELETE.KV_copy")
    sources = [{"name": "KV_origin", "subject_transforms": renamed}]
    await create_stream(nats, "copy", subjects=["$KV.copy.>"], sources=sources)
    await caught_up(nats, "copy", 1)
    store = await nats.open(COPY)
    assert (await store.get("a")).value == note("hi")
    await put(store, "b")
    async with store.watch() as events:
        shown = [event.stored.key for event in await listing(events) if isinstance(event, Applied)]
    assert shown == ["a", "b"]


async def test_a_sourced_bucket_with_foreign_subjects_is_refused(
    nats: Nats, natsctl: Natsctl
) -> None:
    await put(await nats.open(ORIGIN), "a")
    await create_stream(nats, "copy", subjects=["$KV.copy.>"], sources=[{"name": "KV_origin"}])
    with pytest.raises(StoreDiffersError) as raised:
        await nats.open(COPY)
    assert "takes messages of KV_origin under $KV.origin.>" in str(raised.value)
    assert "add a subject transform from $KV.origin.> to $KV.copy.>" in str(raised.value)
    refused = await natsctl("get", "copy")
    assert refused.status != 0
    assert "takes messages of KV_origin under $KV.origin.>" in refused.err
