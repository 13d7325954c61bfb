"""The keys that a process held when it died are found in its file."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from natsctl.core.pausing.held_file import (
    LENGTH,
    SLOT,
    held_file,
    keys_of_dead,
    process_name,
    state_directory,
)

DYING = """
import os, sys
from pathlib import Path
from natsctl.core.pausing.held_file import held_file, state_directory
state_directory.set(Path(sys.argv[1]))
with held_file(sys.argv[2], 3) as held:
    held.slot(0).hold("done")
    held.slot(0).release()
    held.slot(1).hold(sys.argv[3])
    held.slot(2).hold("other")
    os._exit(9)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    token = state_directory.set(tmp_path / "state")
    yield tmp_path / "state"
    state_directory.reset(token)


def die(directory: Path, name: str = "apps.0", key: str = "shop") -> None:
    subprocess.run([sys.executable, "-c", DYING, str(directory), name, key], check=False)


def test_the_held_keys_of_a_dead_process_are_found_once(directory: Path) -> None:
    die(directory)
    assert [key for key, _ in keys_of_dead("apps.0")] == ["shop", "other"]
    assert keys_of_dead("apps.0") == []


def test_the_keys_of_several_dead_processes_are_found(directory: Path) -> None:
    die(directory)
    die(directory, key="market")
    keys = [key for key, _ in keys_of_dead("apps.0")]
    assert sorted(keys) == ["market", "other", "other", "shop"]


def test_the_keys_of_other_loops_are_left(directory: Path) -> None:
    die(directory, name="apps.1")
    assert keys_of_dead("apps.0") == []


def test_a_living_process_holds_its_keys(directory: Path) -> None:
    with held_file("apps.0", 1) as held:
        assert held is not None
        held.slot(0).hold("shop")
        assert keys_of_dead("apps.0") == []
    assert list(directory.iterdir()) == []


def test_a_key_that_is_longer_than_a_slot_is_shortened(directory: Path) -> None:
    die(directory, key="k" * 600)
    assert keys_of_dead("apps.0")[0][0] == "k" * (SLOT - 2)


def test_without_a_state_directory_there_is_no_file() -> None:
    with held_file("apps.0", 1) as held:
        assert held is None
    assert keys_of_dead("apps.0") == []


def test_a_directory_that_cannot_be_written_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    token = state_directory.set(tmp_path / "file")
    with held_file("apps.0", 1) as held:
        assert held is not None
        held.slot(0).hold("shop")
    state_directory.reset(token)
    assert "cannot note held keys" in caplog.text


def left(directory: Path) -> list[str]:
    """Return the keys that the others would find if this process died now."""
    (path,) = directory.glob("apps.0.mine.held")
    (directory / "apps.0.7-a.held").write_bytes(path.read_bytes())
    return [key for key, _ in keys_of_dead("apps.0")]


def test_a_released_slot_holds_no_key(directory: Path) -> None:
    with held_file("apps.0", 2, "mine") as held:
        assert held is not None
        slots = held.slot(0), held.slot(1)
        for slot, key in zip(slots, ("shop", "bank"), strict=True):
            slot.hold(key)
        slots[0].release()
        assert left(directory) == ["bank"]


def test_a_slot_holds_no_key_after_its_context(directory: Path) -> None:
    with held_file("apps.0", 1, "mine") as held:
        assert held is not None
        with held.slot(0) as slot:
            slot.hold("shop")
            assert left(directory) == ["shop"]
        assert left(directory) == []


@pytest.mark.parametrize("length", [1, SLOT - LENGTH, SLOT - LENGTH + 1])
def test_each_slot_has_its_own_key_of_any_length(directory: Path, length: int) -> None:
    with held_file("apps.0", 2, "mine") as held:
        assert held is not None
        held.slot(1).hold("bank")
        held.slot(0).hold("k" * length)
        assert left(directory) == ["k" * min(length, SLOT - LENGTH), "bank"]


@pytest.mark.parametrize(
    "content", [b"", b"\x02\x00sh", b"\xff" * SLOT, b"\x02\x00\xff\xfe" * SLOT]
)
def test_a_damaged_file_has_no_keys(directory: Path, content: bytes) -> None:
    directory.mkdir()
    (directory / "apps.0.7-a.held").write_bytes(content)
    assert keys_of_dead("apps.0") == []
    assert list(directory.iterdir()) == []


def test_the_state_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    token = state_directory.set(tmp_path / "state" / "natsctl")
    with held_file("apps.0", 1, "mine"):
        assert (tmp_path / "state" / "natsctl" / "apps.0.mine.held").exists()
    state_directory.reset(token)


def test_a_file_may_be_gone_at_the_end(directory: Path) -> None:
    with held_file("apps.0", 1, "mine"):
        (directory / "apps.0.mine.held").unlink()
    assert list(directory.iterdir()) == []


def test_only_the_user_can_read_the_state_directory(directory: Path) -> None:
    with held_file("apps.0", 1):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_a_sync_loop_without_a_name_has_no_file(directory: Path) -> None:
    with held_file("", 1) as held:
        assert held is None
    assert (keys_of_dead(""), directory.exists()) == ([], False)


def test_every_process_has_a_name_of_its_own() -> None:
    names = {process_name() for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith(f"{os.getpid()}-") for name in names)


def test_the_file_has_all_its_blocks_before_a_key_is_held(directory: Path) -> None:
    with held_file("apps.0", 20, "mine") as held:
        assert held is not None
        (path,) = directory.iterdir()
        assert path.stat().st_size == 20 * SLOT
        assert path.stat().st_blocks * 512 >= 20 * SLOT
