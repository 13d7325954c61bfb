"""The hosts controller writes the bucket between the markers of a hosts file."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controllers.hosts import BEGIN, END, HOSTS, Hosts
from natsctl.testing import MemoryStores
from tests.support.controllers.app_controller import SlowStores
from tests.support.stores.documents import put

FOREIGN = "127.0.0.1\tlocalhost\r\n# caf\xe9 \x0c of mine"


class HostsHarness:
    """A bucket of hosts, and a hosts file."""

    def __init__(self, file: Path, stores: MemoryStores) -> None:
        self.file = file
        self.stores = stores
        self.store = stores.store(HOSTS)

    async def host(self, key: str, address: object, *aliases: str) -> None:
        await put(self.store, key, {"spec": {"address": address, "aliases": aliases}})

    async def block(self) -> list[str] | None:
        """Wait until all changes are written, and return the lines between the markers."""
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
def harness(tmp_path: Path) -> HostsHarness:
    return HostsHarness(tmp_path / "hosts", SlowStores())


async def test_the_file_has_a_line_for_every_host_sorted_by_name(harness: HostsHarness) -> None:
    async with harness.running() as hosts:
        assert await harness.block() == []
        assert hosts.synced.is_set()
        await harness.host("b", "10.0.0.2")
        await harness.host("a", "2001:DB8:0::1", "gw", "router")
        assert await harness.block() == ["2001:db8::1\ta gw router", "10.0.0.2\tb"]
        await harness.host("a", "10.0.0.9")
        await harness.store.delete("b")
        assert await harness.block() == ["10.0.0.9\ta"]
        await harness.store.delete("a")
        assert await harness.block() == []


async def test_lines_outside_the_markers_are_kept(harness: HostsHarness) -> None:
    harness.file.write_bytes(FOREIGN.encode("latin-1"))
    harness.file.chmod(0o640)
    await harness.host("a", "10.0.0.1")
    async with harness.running():
        await harness.block()
        with harness.file.open("ab") as file:
            file.write(b"10.9.9.9 mine\n")
        await harness.host("a", "10.0.0.2")
        await harness.block()
    block = f"\n{BEGIN}\n10.0.0.2\ta\n{END}\n10.9.9.9 mine\n"
    assert harness.file.read_bytes() == (FOREIGN + block).encode("latin-1")
    assert harness.file.stat().st_mode & 0o777 == 0o640


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
async def test_an_invalid_host_has_no_line_and_does_not_affect_others(  # noqa: PLR0917 - one for each parameter
    harness: HostsHarness,
    caplog: pytest.LogCaptureFixture,
    key: str,
    address: str,
    aliases: tuple[str, ...],
    reason: str,
) -> None:
    await harness.host("good", "10.0.0.1")
    await harness.host(key, address, *aliases)
    async with harness.running():
        assert await harness.block() == ["10.0.0.1\tgood"]
        assert [reason in record.getMessage() for record in caplog.records] == [True]
        await harness.store.delete(key)
        assert await harness.block() == ["10.0.0.1\tgood"]


async def test_a_failed_write_of_the_file_is_retried(harness: HostsHarness) -> None:
    await harness.host("a", "10.0.0.1")
    harness.file.mkdir()
    async with harness.running() as hosts:
        await asyncio.sleep(60)
        assert not hosts.synced.is_set()
        harness.file.rmdir()
        assert await harness.block() == ["10.0.0.1\ta"]


@pytest.mark.parametrize("markers", [(BEGIN,), (END, BEGIN), (BEGIN, END, BEGIN, END)])
async def test_a_file_with_broken_markers_is_not_changed(
    harness: HostsHarness, caplog: pytest.LogCaptureFixture, markers: tuple[str, ...]
) -> None:
    text = "".join(f"{mark}\n1.1.1.1 foreign\n" for mark in markers)
    harness.file.write_text(text)
    await harness.host("a", "10.0.0.1")
    async with harness.running():
        await asyncio.sleep(1)
        assert harness.file.read_text() == text
        assert "event failed kind=" in caplog.text
        assert "type=sync" in caplog.text
        assert f"UsageError: {harness.file}: the marks" in caplog.text
        assert "upsert" not in caplog.text  # nothing is written before the sync
        harness.file.write_text("1.1.1.1 foreign\n")
        assert await harness.block() == ["10.0.0.1\ta"]


async def test_a_symbolic_link_to_the_file_is_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("1.1.1.1 foreign\n")
    link.symlink_to(target)
    harness = HostsHarness(link, MemoryStores())
    await harness.host("a", "10.0.0.1")
    async with harness.running():
        assert await harness.block() == ["10.0.0.1\ta"]
    assert link.is_symlink()


async def test_an_unchanged_file_is_not_written(harness: HostsHarness) -> None:
    await harness.host("a", "10.0.0.1")
    async with harness.running():
        await harness.block()
        before = harness.file.stat().st_ino
        await put(harness.store, "a", {"spec": {"address": "10.0.0.1"}, "status": {"seen": True}})
        await harness.block()
        assert harness.file.stat().st_ino == before


async def test_hosts_file_sets_the_path_of_the_file(
    harness: HostsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTS_FILE", str(harness.file))
    assert Hosts().path == harness.file
