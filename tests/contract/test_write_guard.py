"""Contract tests of the write guard: a store checks it before every write, never before a read."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import natsctl
from natsctl import Kind
from natsctl.core.coordination.term import Leadership, TermGuard
from natsctl.core.installation import INSTALLATION
from natsctl.errors import NotFoundError, NotLeadingError
from natsctl.model.store import ManifestStore, Store, WriteGuard
from tests.support.stores.backends import Backend, ManifestBackend, listing, note
from tests.support.stores.documents import metadata_of, parse


class Closed(WriteGuard):
    """A guard that permits the first `permitted` writes and forbids all later ones."""

    def __init__(self, permitted: int = 0) -> None:
        self.checked: list[str] = []
        self._permitted = permitted

    def check(self, kind: Kind[Any] | None) -> None:
        self.checked.append("" if kind is None else kind.name)
        if len(self.checked) > self._permitted:
            raise NotLeadingError("this process does not lead")


def leading_until(until: float) -> TermGuard:
    loop = asyncio.get_running_loop()
    leadership = Leadership("notes", loop.time)
    leadership.begin(1, until=loop.time() + until)
    return TermGuard(leadership)


async def test_a_write_that_the_guard_forbids_is_not_sent(backend: Backend, store: Store) -> None:
    stored = await store.create("shop", note("hi"))
    guard = Closed()
    guarded = await backend.stores.guarded(guard).open(backend.kind())
    writes: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: guarded.create("other", note("ho")),
        lambda: guarded.update("shop", note("ho"), revision=stored.revision),
        lambda: guarded.delete("shop"),
        lambda: guarded.delete("shop", revision=stored.revision, purge=True),
    )
    for write in writes:
        with pytest.raises(NotLeadingError, match="this process does not lead"):
            await write()
    assert guard.checked == [backend.kind().name] * len(writes)
    assert await store.get("shop") == stored
    with pytest.raises(NotFoundError):
        await store.get("other")


async def test_reads_and_watches_do_not_check_the_guard(backend: Backend, store: Store) -> None:
    stored = await store.create("shop", note("hi"))
    guard = Closed()
    guarded = await backend.stores.guarded(guard).open(backend.kind())
    assert await guarded.get("shop") == stored
    assert await guarded.history("shop") == [stored]
    async with guarded.watch() as events:
        await listing(events)
    assert guard.checked == []


async def test_every_write_checks_the_guard(backend: Backend, store: Store) -> None:
    """A store that was opened without a guard checks none."""
    guarded = await backend.stores.guarded(Closed(permitted=1)).open(backend.kind())
    created = await guarded.create("shop", note("hi"))
    with pytest.raises(NotLeadingError):
        await guarded.update("shop", note("ho"), revision=created.revision)
    assert await store.get("shop") == created
    assert await (await backend.stores.open(backend.kind())).get("shop") == created
    await store.delete("shop")


async def test_a_leader_writes_until_its_term_is_over(backend: Backend, store: Store) -> None:
    guarded = await backend.stores.guarded(leading_until(60.0)).open(backend.kind())
    created = await guarded.create("shop", note("hi"))
    guarded = await backend.stores.guarded(leading_until(0.0)).open(backend.kind())
    with pytest.raises(NotLeadingError, match="notes is not led by this process"):
        await guarded.delete("shop", revision=created.revision)
    assert await guarded.get("shop") == created


@pytest.mark.parametrize("backend", ["memory", "nats"], indirect=True)
async def test_a_standby_may_store_the_id_of_the_installation(backend: Backend) -> None:
    guarded = await backend.stores.guarded(leading_until(0.0)).open(INSTALLATION)
    created = await guarded.create("installation", b'{"id":"cafe"}')
    assert await guarded.get("installation") == created


async def test_a_manifest_write_that_the_guard_forbids_is_not_sent(
    manifests: ManifestBackend,
) -> None:
    store: ManifestStore = await manifests.stores.open(manifests.kind())
    wanted = {
        "apiVersion": "contract.test/v1",
        "kind": "Note",
        "metadata": {"name": "shop"},
        "spec": {"text": "hi"},
    }
    stored = await store.apply(wanted, manager="natsctl/apps", uid="")  # type: ignore[arg-type]
    uid = str(metadata_of(parse(stored.value))["uid"])
    guard = Closed()
    guarded = await manifests.stores.guarded(guard).open(manifests.kind())
    changed = {**wanted, "spec": {"text": "ho"}}
    writes: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: guarded.apply(changed, manager="natsctl/apps", uid=uid),  # type: ignore[arg-type]
        lambda: guarded.apply(changed, manager="natsctl/apps", uid=uid, force=True),  # type: ignore[arg-type]
        lambda: guarded.patch_status("shop", {"ready": True}),
        lambda: guarded.patch_status("shop", {"ready": True}, revision=stored.revision),
        lambda: guarded.delete("shop", revision=stored.revision, uid=uid),
    )
    for write in writes:
        with pytest.raises(NotLeadingError):
            await write()
    assert guard.checked == [manifests.kind().name] * len(writes)
    assert await guarded.locate(wanted) == "shop"  # type: ignore[arg-type]
    assert (await guarded.managed("shop")).revision == stored.revision
    assert await store.get("shop") == stored


@pytest.mark.parametrize("backend", ["nats"], indirect=True)
async def test_a_change_through_the_jetstream_api_checks_the_guard(backend: Backend) -> None:
    await backend.stores.open(backend.kind())
    guard = Closed()
    guarded = backend.stores.guarded(guard)
    assert isinstance(guarded, natsctl.JetStream)
    for endpoint in ("INFO", "STREAM.INFO.KV_notes", "STREAM.NAMES", "CONSUMER.LIST.KV_notes"):
        await guarded.api(endpoint)
    assert guard.checked == []
    writes = (
        "STREAM.CREATE.KV_notes",
        "STREAM.DELETE.KV_notes",
        "STREAM.DELETE.LIST",
        "STREAM.MSG.DELETE.KV_notes",
        "CONSUMER.CREATE.KV_notes",
    )
    for endpoint in writes:
        with pytest.raises(NotLeadingError):
            await guarded.api(endpoint)
    assert len(guard.checked) == len(writes)
    assert (await guarded.api("STREAM.INFO.KV_notes"))["config"]["name"] == "KV_notes"


@pytest.mark.parametrize("backend", ["nats"], indirect=True)
async def test_a_bucket_that_the_guard_forbids_is_not_created(backend: Backend) -> None:
    class NoNewBuckets(WriteGuard):
        def may_create(self, kind: natsctl.KvKind[Any]) -> bool:
            return kind.bucket == "allowed"

    guarded = backend.stores.guarded(NoNewBuckets())
    with pytest.raises(natsctl.StoreMissingError):
        await guarded.open(backend.kind())
    allowed = await guarded.open(natsctl.kv(bytes, bucket="allowed", storage="memory"))
    await allowed.create("shop", b"hi")
    await backend.stores.open(backend.kind())
    existing = await guarded.open(backend.kind())
    await existing.create("shop", note("hi"))
