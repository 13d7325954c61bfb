"""`natsctl backup` and `natsctl restore`: a whole bucket, to a file and back."""

import asyncio
import gzip
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue

from tests.support.cli.natsctl_command import InProcess, Natsctl, Running
from tests.support.clients.bucket_keys import values
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy

OBJECT = {
    "metadata": {"uid": "u-1", "finalizers": ["x/y"], "generation": 7, "labels": {"a": "b"}},
    "spec": {"text": "hi"},
    "status": {"ready": True},
    "unknown": [1, {"deep": None}],
}
VALUES = {
    "object": json.dumps(OBJECT, indent=3).encode(),
    "exact": b'{"spec": {"n": 12345678901234567890.5, "n2": 1.10, "a": 1, "a": 2}}',
    "bytes": b"\xff\x00\x80",
    "empty": b"",
    "text": "two\nlines \u202e".encode(),
    "a/b=c_d-e.f.G": b"1",
}


async def create_bucket(jetstream: JetStreamContext, name: str, **options: Any) -> KeyValue:
    config = KeyValueConfig(bucket=name, **{"history": 5, **options})
    return await jetstream.create_key_value(config)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
async def shops(jetstream: JetStreamContext) -> KeyValue:
    bucket = await create_bucket(
        jetstream, "shops", history=9, description="all shops", ttl=86400.0
    )
    for key, value in VALUES.items():
        await bucket.put(key, b"older")
        await bucket.put(key, value)
    await bucket.put("gone", b"x")
    await bucket.delete("gone")
    return bucket


@pytest.mark.parametrize("name", ["shops.backup", "shops.backup.gz"])
async def test_restore_recreates_a_bucket_with_its_options_and_every_byte(
    in_process: InProcess, jetstream: JetStreamContext, shops: KeyValue, folder: Path, name: str
) -> None:
    file = str(folder / name)
    saved = await in_process("backup", "shops", "-o", file)
    assert (saved.status, saved.err) == (0, f"shops: 6 keys written to {file}\n")
    await jetstream.delete_key_value("shops")
    done = await in_process("restore", file)
    assert (done.status, done.out) == (0, "shops: 6 created, 0 replaced, 0 unchanged, 0 kept\n")
    assert await values(shops) == VALUES
    assert await values(await jetstream.key_value("shops")) == VALUES
    config = (await jetstream.stream_info("KV_shops")).config
    assert (config.max_msgs_per_subject, config.max_age) == (9, 86400.0)
    assert config.description == "all shops"
    assert (await in_process("history", "shops", "gone")).status == 3


async def test_a_backup_file_is_readable_by_its_owner_only(
    in_process: InProcess, shops: KeyValue, folder: Path
) -> None:
    await in_process("backup", "shops", "-o", str(folder / "b"))
    assert (folder / "b").stat().st_mode & 0o777 == 0o600


async def test_a_backup_goes_through_a_pipe(natsctl: Natsctl, shops: KeyValue) -> None:
    backup = await natsctl.done("backup", "shops", "-o", "-")
    done = await natsctl("restore", "-", "--bucket", "copy", stdin=backup)
    assert done.out == "copy: 6 created, 0 replaced, 0 unchanged, 0 kept\n"


async def test_restore_refuses_a_bucket_that_is_not_empty(
    in_process: InProcess, shops: KeyValue, folder: Path
) -> None:
    file = str(folder / "b")
    await in_process("backup", "shops", "-o", file)
    await shops.put("object", b"changed")
    refused = await in_process("restore", file)
    assert refused.status == 4
    assert "bucket shops is not empty: --merge adds" in refused.err
    assert (await shops.get("object")).value == b"changed"


async def test_restore_accepts_a_bucket_with_only_deleted_keys(
    in_process: InProcess, shops: KeyValue, folder: Path
) -> None:
    file = str(folder / "b")
    await in_process("backup", "shops", "-o", file)
    for key in VALUES:
        await shops.delete(key)
    assert (await in_process("restore", file)).status == 0
    assert await values(shops) == VALUES


async def test_merge_adds_missing_keys_and_keeps_existing_values(
    in_process: InProcess, shops: KeyValue, folder: Path
) -> None:
    file = str(folder / "b")
    await in_process("backup", "shops", "-o", file)
    await shops.put("object", b"changed")
    await shops.put("other", b"mine")
    await shops.delete("text")
    done = await in_process("restore", file, "--merge")
    assert (done.status, done.out) == (4, "shops: 1 created, 0 replaced, 4 unchanged, 1 kept\n")
    assert await values(shops) == {**VALUES, "object": b"changed", "other": b"mine"}


async def test_overwrite_replaces_only_keys_whose_values_differ(
    in_process: InProcess, shops: KeyValue, folder: Path
) -> None:
    file = str(folder / "b")
    await in_process("backup", "shops", "-o", file)
    await shops.put("object", b"changed")
    revision = await shops.put("other", b"mine")
    done = await in_process("restore", file, "--overwrite")
    assert (done.status, done.out) == (0, "shops: 0 created, 1 replaced, 5 unchanged, 0 kept\n")
    assert await values(shops) == {**VALUES, "other": b"mine"}
    assert (await shops.get("other")).revision == revision


async def test_restore_reports_options_that_differ_from_the_backup(
    in_process: InProcess, jetstream: JetStreamContext, shops: KeyValue, folder: Path
) -> None:
    await in_process("backup", "shops", "-o", str(folder / "b"))
    await create_bucket(jetstream, "small", history=2)
    done = await in_process("restore", str(folder / "b"), "--bucket", "small")
    assert done.status == 0
    assert "bucket small keeps its options: max_msgs_per_subject is 2, in the backup 9" in done.err


async def test_restore_continues_after_a_value_that_is_too_large(
    in_process: InProcess, jetstream: JetStreamContext, shops: KeyValue, folder: Path
) -> None:
    await shops.put("large", b"x" * 5000)
    await in_process("backup", "shops", "-o", str(folder / "b"))
    bucket = await create_bucket(jetstream, "small", max_value_size=1000)
    done = await in_process("restore", str(folder / "b"), "--bucket", "small")
    assert done.status == 1
    assert "natsctl: error: large: large of small has 5000 bytes" in done.err
    assert await values(bucket) == VALUES


async def test_restore_of_a_damaged_backup_writes_nothing(
    in_process: InProcess, jetstream: JetStreamContext, shops: KeyValue, folder: Path
) -> None:
    await in_process("backup", "shops", "-o", str(folder / "b.gz"))
    data = gzip.decompress((folder / "b.gz").read_bytes())
    for wrong in (data[:-30], data.replace(b"two", b"too"), b"{}\n"):
        (folder / "wrong").write_bytes(wrong)
        refused = await in_process("restore", str(folder / "wrong"), "--bucket", "new")
        assert refused.status == 2
        assert refused.err.startswith(f"natsctl: error: {folder}/wrong: it")
    assert (await in_process("list", "new")).status == 3


async def test_a_failed_backup_keeps_the_existing_file(
    in_process: InProcess, shops: KeyValue, folder: Path
) -> None:
    (folder / "b").write_text("the backup of yesterday")
    assert (await in_process("backup", "nosuch", "-o", str(folder / "b"))).status == 3
    assert (folder / "b").read_text() == "the backup of yesterday"
    assert names_in(folder) == ["b"]
    assert (await in_process("backup", "shops", "-o", str(folder / "no" / "b"))).status == 2


async def test_merge_completes_an_interrupted_restore(
    in_process: InProcess, cut_proxy: CutProxy, jetstream: JetStreamContext, folder: Path
) -> None:
    bucket = await create_bucket(jetstream, "many")
    await asyncio.gather(*(bucket.put(f"k{n}", b"v" * 1000) for n in range(3000)))
    file = str(folder / "b")
    await in_process("backup", "many", "-o", file)
    cut_proxy.freeze_after(1_000_000)  # a third of the values
    patient = {"NATSCTL_TIMEOUT": "600", "NATSCTL_SILENCE_S": "600"}
    natsctl = Natsctl(folder, cut_proxy.url, environ=patient)
    async with natsctl.running("restore", file, "--bucket", "copy") as running:
        await eventually(lambda: cut_proxy.is_frozen)
        assert await running.ends(signal.SIGKILL) == -signal.SIGKILL
    assert 0 < len(await values(await jetstream.key_value("copy"))) < 3000
    done = await in_process("restore", file, "--bucket", "copy", "--merge")
    assert done.status == 0
    assert len(await values(await jetstream.key_value("copy"))) == 3000


async def test_a_backup_during_writes_has_each_key_once(
    in_process: InProcess, jetstream: JetStreamContext, folder: Path
) -> None:
    bucket = await create_bucket(jetstream, "busy", history=1)
    for n in range(300):
        await bucket.put(f"k{n}", b"0")
    stopped = asyncio.Event()

    async def write() -> int:
        rounds = 0
        while not stopped.is_set():
            rounds += 1
            for n in range(0, 300, 3):
                await bucket.put(f"k{n}", str(rounds).encode())
            await bucket.put("comes", b"and goes")
            await bucket.delete("comes")
        return rounds

    writing = asyncio.create_task(write())
    assert (await in_process("backup", "busy", "-o", str(folder / "b"))).status == 0
    stopped.set()
    await writing
    assert (await in_process("restore", str(folder / "b"), "--bucket", "copy")).status == 0
    stored = await values(await jetstream.key_value("copy"))
    stored.pop("comes", None)
    assert sorted(stored) == sorted(f"k{n}" for n in range(300))
    assert all(value == b"0" for key, value in stored.items() if int(key[1:]) % 3)


async def test_a_daemon_syncs_a_restored_bucket_and_keeps_its_secondaries(
    in_process: InProcess,
    daemon: Callable[..., Awaitable[Running]],
    jetstream: JetStreamContext,
    nats_server: NatsServer,
    folder: Path,
) -> None:
    """Delete and restore the primary bucket while a daemon runs."""
    await daemon("controllers.greetings:Greetings")
    for n in range(20):
        await in_process("put", "greetings", f"g{n}", "spec: {text: hi}")

    async def routes() -> int:
        return len(json.loads((await in_process("list", "routes", "-o", "json")).out))

    async def all_routed() -> bool:
        return await routes() == 20

    await eventually(all_routed)
    before = await values(await jetstream.key_value("routes"))
    await in_process("backup", "greetings", "-o", str(folder / "b"))
    await jetstream.delete_key_value("greetings")
    assert (await in_process("restore", str(folder / "b"))).status == 0
    await in_process("put", "greetings", "g0", "spec: {text: changed}")

    async def synced() -> bool:
        return b"changed" in b"".join((await values(await jetstream.key_value("routes"))).values())

    await eventually(synced)
    after = await values(await jetstream.key_value("routes"))
    assert after.keys() == before.keys()
