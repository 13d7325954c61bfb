"""The keys that a process was syncing when it died are found in its files."""

import subprocess
import sys
from pathlib import Path

import pytest

from natsctl.core.quarantine import LENGTH, SLOT, ClaimedKeys, Left
from tests.support.controllers.quarantined_apps import DYING


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


def die(directory: Path, *words: str) -> None:
    """Run a process that dies while it syncs LOOP:KEY for each of the words."""
    subprocess.run([sys.executable, "-c", DYING, str(directory), *words], check=False)


def left(directory: Path, loop: str = "apps.0") -> list[tuple[tuple[str, ...], bool]]:
    return [(found.keys, found.alone) for found in ClaimedKeys(directory).left_behind(loop)]


def test_a_key_that_was_alone_is_found_once(directory: Path) -> None:
    die(directory, "apps.0:shop")
    assert left(directory) == [(("shop",), True)]
    assert left(directory) == []


def test_keys_that_were_synced_at_the_same_time_were_not_alone(directory: Path) -> None:
    die(directory, "apps.0:shop", "apps.0:bank")
    assert left(directory) == [(("shop", "bank"), False)]


def test_keys_of_another_loop_count_whichever_is_read_first(directory: Path) -> None:
    die(directory, "apps.0:shop", "sites.0:bank")
    assert left(directory) == [(("shop",), False)]
    assert left(directory, "sites.0") == [(("bank",), False)]
    assert list(directory.iterdir()) == []


def test_each_dead_process_has_its_own_keys(directory: Path) -> None:
    die(directory, "apps.0:shop")
    die(directory, "apps.0:bank")
    assert sorted(left(directory)) == [(("bank",), True), (("shop",), True)]


def test_a_living_process_keeps_its_keys_and_leaves_none(directory: Path) -> None:
    with ClaimedKeys(directory).of_loop("apps.0", 1) as claims:
        claims[0].hold("shop")
        assert left(directory) == []
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("length", [1, SLOT - LENGTH, SLOT - LENGTH + 1])
def test_each_worker_has_its_own_key_of_any_length(directory: Path, length: int) -> None:
    die(directory, "apps.0:bank", f"apps.0:{'k' * length}")
    assert left(directory) == [(("bank", "k" * min(length, SLOT - LENGTH)), False)]


def test_a_sync_that_has_ended_leaves_no_key(directory: Path) -> None:
    with ClaimedKeys(directory).of_loop("apps.0", 1) as claims:
        with claims[0]:
            claims[0].hold("shop")
        (path,) = directory.iterdir()
        (directory / "apps.0.7-a.held").write_bytes(path.read_bytes())  # without its lock
        assert left(directory) == []


@pytest.mark.parametrize("directory", [None, Path("/dev/null/state")])
def test_without_a_directory_on_disk_there_is_no_file(directory: Path | None) -> None:
    claims = ClaimedKeys(directory)
    assert not claims.on_disk
    with claims.of_loop("apps.0", 2) as of_workers:
        for claim in of_workers:
            claim.hold("shop")
        assert claims.busy is (directory is not None)
    assert claims.left_behind("apps.0") == []


@pytest.mark.parametrize(
    "content", [b"", b"\x02\x00sh", b"\xff" * SLOT, b"\x02\x00\xff\xfe" * SLOT]
)
def test_a_damaged_file_has_no_keys(directory: Path, content: bytes) -> None:
    directory.mkdir()
    (directory / "apps.0.7-a.held").write_bytes(content)
    assert left(directory) == []
    assert list(directory.iterdir()) == []


def test_only_the_user_can_read_the_state_directory(directory: Path) -> None:
    ClaimedKeys(directory / "id")
    assert (directory / "id").stat().st_mode & 0o777 == 0o700


def test_the_file_has_all_its_blocks_before_a_key_is_noted(directory: Path) -> None:
    with ClaimedKeys(directory).of_loop("apps.0", 20):
        (path,) = directory.iterdir()
        assert path.stat().st_size == 20 * SLOT
        assert path.stat().st_blocks * 512 >= 20 * SLOT


def test_each_process_has_a_name_of_its_own(directory: Path) -> None:
    die(directory, "apps.0:shop")
    die(directory, "apps.0:shop")
    found: list[Left] = ClaimedKeys(directory).left_behind("apps.0")
    assert len({keys.process for keys in found}) == 2
