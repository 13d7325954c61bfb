"""A hosts file says what the bucket says, between its marks; the rest of it is nobody's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controllers.hosts import BEGIN, END, HOSTS, Hosts, replace
from natsctl import UsageError
from natsctl.daemon.operator import Operator
from natsctl.testing.memory import MemoryStores
from tests.support.controllers.app_controller import SlowStores, put

FOREIGN = "127.0.0.1\tlocalhost\r\n# caf\xe9 \x0c of mine"


class Stage:
    """A bucket of hosts, and a file."""

    def __init__(self, file: Path, stores: MemoryStores) -> None:
        self.file = file
        self.stores = stores
        self.store = stores.store(HOSTS)

    async def host(self, key: str, address: object, *aliases: str) -> None:
        await put(self.store, key, {"spec": {"address": address, "aliases": aliases}})

    async def block(self) -> list[str] | None:
        """Return the lines between the marks, once everything that was to happen has."""
        await asyncio.sleep(2000)
        if not self.file.exists():
            return None
        lines = self.file.read_text("latin-1").splitlines()
        return lines[lines.index(BEGIN) + 1 : lines.index(END)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Hosts]:
        hosts = Hosts(self.file)
        hosts.use(nats=self.stores)
        task = asyncio.create_task(hosts.run())
        try:
            yield hosts
        finally:
            hosts.stop()
            await task


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "hosts", SlowStores())


async def test_every_host_has_a_line_and_lines_are_sorted_by_name(stage: Stage) -> None:
    await stage.host("shop.berlin", "10.0.0.2")
    await stage.host("gw.berlin", "2001:DB8:0::1", "gw", "router")
    async with stage.running():
        assert await stage.block() == [
            "2001:db8::1\tgw.berlin gw router",
            "10.0.0.2\tshop.berlin",
        ]


async def test_the_file_is_updated_with_the_bucket(stage: Stage) -> None:
    async with stage.running() as hosts:
        assert await stage.block() == []
        assert hosts.synced.is_set()
        await stage.host("a", "10.0.0.1")
        await stage.host("b", "10.0.0.2")
        assert await stage.block() == ["10.0.0.1\ta", "10.0.0.2\tb"]
        await stage.host("a", "10.0.0.9")
        await stage.store.delete("b")
        assert await stage.block() == ["10.0.0.9\ta"]
        await stage.store.delete("a")
        assert await stage.block() == []


async def test_changes_while_no_process_ran_are_written_at_the_start(stage: Stage) -> None:
    for key in ("changed", "gone", "kept"):
        await stage.host(key, "10.0.0.1")
    async with stage.running():
        assert len(await stage.block() or []) == 3
    await stage.store.delete("gone")
    await stage.host("changed", "10.0.0.2")
    async with stage.running():
        assert await stage.block() == ["10.0.0.2\tchanged", "10.0.0.1\tkept"]


async def test_the_file_is_not_written_before_the_cache_is_synced(stage: Stage) -> None:
    await stage.host("a", "10.0.0.1")
    await stage.host("b", "10.0.0.1")
    async with stage.running():
        before = await stage.block()
    assert isinstance(stage.stores, SlowStores)
    with stage.stores.store(HOSTS).held_up():
        async with stage.running() as hosts:
            assert await stage.block() == before
            assert not hosts.synced.is_set()


async def test_lines_outside_the_markers_are_kept(stage: Stage) -> None:
    stage.file.write_bytes(FOREIGN.encode("latin-1"))
    stage.file.chmod(0o640)
    await stage.host("a", "10.0.0.1")
    async with stage.running():
        await stage.block()
        with stage.file.open("ab") as file:
            file.write(b"10.9.9.9 mine\n")
        await stage.host("a", "10.0.0.2")
        await stage.block()
    block = f"\n{BEGIN}\n10.0.0.2\ta\n{END}\n10.9.9.9 mine\n"
    assert stage.file.read_bytes() == (FOREIGN + block).encode("latin-1")
    assert stage.file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("key", "address", "aliases", "reason"),
    [
        ("bad", "10.0.0.256", (), "'10.0.0.256' is not a valid address"),
        ("bad", "", (), "'' is not a valid address"),
        ("bad", "fe80::1%a\n6.6.6.6 bank", (), "zone"),
        ("bad", "10.0.0.1", ("x\n6.6.6.6 bank",), "not a valid host name"),
        ("bad", "10.0.0.1", ("a b",), "'a b' is not a valid host name"),
        ("bad", "10.0.0.1", ("-a",), "'-a' is not a valid host name"),
        ("bad_key", "10.0.0.1", (), "'bad_key' is not a valid host name"),
    ],
)
async def test_an_invalid_host_has_no_line_and_does_not_affect_others(  # noqa: PLR0917 - one for each column
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
    key: str,
    address: str,
    aliases: tuple[str, ...],
    reason: str,
) -> None:
    await stage.host("good", "10.0.0.1")
    await stage.host(key, address, *aliases)
    async with stage.running():
        assert await stage.block() == ["10.0.0.1\tgood"]
        assert [reason in record.getMessage() for record in caplog.records] == [True]
        await stage.store.delete(key)
        assert await stage.block() == ["10.0.0.1\tgood"]


async def test_a_host_that_becomes_invalid_has_no_line_until_it_is_valid(stage: Stage) -> None:
    await stage.host("a", "10.0.0.1")
    async with stage.running():
        assert await stage.block() == ["10.0.0.1\ta"]
        await stage.host("a", "nowhere")
        assert await stage.block() == []
        await stage.host("a", "10.0.0.2")
        assert await stage.block() == ["10.0.0.2\ta"]


async def test_a_value_that_is_not_a_host_is_skipped(stage: Stage) -> None:
    await stage.host("a", 7)
    await put(stage.store, "b", b"oops")
    await stage.host("c", "10.0.0.1")
    async with stage.running():
        assert await stage.block() == ["10.0.0.1\tc"]


async def test_a_failed_write_of_the_file_is_retried(stage: Stage) -> None:
    await stage.host("a", "10.0.0.1")
    stage.file.mkdir()
    async with stage.running() as hosts:
        await asyncio.sleep(60)
        assert not hosts.synced.is_set()
        stage.file.rmdir()
        assert await stage.block() == ["10.0.0.1\ta"]


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.mkdir()
    with pytest.raises(IsADirectoryError):
        replace(file, b"new")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("marks", [(BEGIN,), (END, BEGIN), (BEGIN, END, BEGIN, END)])
async def test_a_file_with_broken_markers_is_not_changed(
    stage: Stage, caplog: pytest.LogCaptureFixture, marks: tuple[str, ...]
) -> None:
    text = "".join(f"{mark}\n1.1.1.1 foreign\n" for mark in marks)
    stage.file.write_text(text)
    await stage.host("a", "10.0.0.1")
    async with stage.running():
        await asyncio.sleep(1)
        assert stage.file.read_text() == text
        assert "event failed kind=" in caplog.text
        assert "type=sync" in caplog.text
        assert f"UsageError: {stage.file}: the marks" in caplog.text
        assert "upsert" not in caplog.text  # nothing is written before the sync
        stage.file.write_text("1.1.1.1 foreign\n")
        assert await stage.block() == ["10.0.0.1\ta"]


async def test_a_symbolic_link_to_the_file_is_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("1.1.1.1 foreign\n")
    link.symlink_to(target)
    stage = Stage(link, MemoryStores())
    await stage.host("a", "10.0.0.1")
    async with stage.running():
        assert await stage.block() == ["10.0.0.1\ta"]
    assert link.is_symlink()


async def test_an_unchanged_file_is_not_written(stage: Stage) -> None:
    await stage.host("a", "10.0.0.1")
    async with stage.running():
        await stage.block()
        before = stage.file.stat().st_ino
        await put(stage.store, "a", {"spec": {"address": "10.0.0.1"}, "status": {"seen": True}})
        await stage.block()
        assert stage.file.stat().st_ino == before


async def test_hosts_file_sets_the_path_of_the_file(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTS_FILE", str(stage.file))
    assert Hosts().path == stage.file


async def test_a_controller_stopped_before_its_start_does_nothing(stage: Stage) -> None:
    hosts = Hosts(stage.file)
    hosts.use(nats=stage.stores)
    hosts.stop()
    await hosts.run()
    assert not stage.file.exists()
    assert stage.store.watches == 0


async def test_a_missing_nats_connection_raises_a_usage_error(stage: Stage) -> None:
    hosts = Hosts(stage.file)
    hosts.stop()
    with pytest.raises(UsageError, match="hosts are kept in NATS"):
        await hosts.run()


async def test_an_operator_can_run_the_hosts_controller(stage: Stage) -> None:
    await stage.host("a", "10.0.0.1")
    operator = Operator([Hosts(stage.file)], nats=stage.stores)
    running = asyncio.create_task(operator.run())
    await operator.synced.wait()
    assert await stage.block() == ["10.0.0.1\ta"]
    operator.stop()
    await running
    assert stage.store.watches == 0
