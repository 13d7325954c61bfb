"""The number of usable cores follows the affinity and the CPU quotas."""

import os
from pathlib import Path

import pytest

from natsctl.cli.simulate import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def cores(folder: Path, own: str, files: dict[str, str]) -> int:
    """Return the cores of a process in the control groups of *own*, which have these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "own").write_text(own)
    return usable_cores(cgroups=folder, own=folder / "own")


def test_without_a_quota_the_affinity_counts(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/app\n", {"app/cpu.max": "max 100000\n"}) == 8


def test_a_system_without_control_groups_has_the_cores_of_the_affinity(tmp_path: Path) -> None:
    assert usable_cores(cgroups=tmp_path / "none", own=tmp_path / "none") == 8


@pytest.mark.parametrize(
    ("quota", "number"), [("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1)]
)
def test_a_quota_limits_the_cores(tmp_path: Path, quota: str, number: int) -> None:
    assert cores(tmp_path, "0::/app\n", {"app/cpu.max": quota}) == number


def test_the_quota_of_an_outer_group_limits_the_cores(tmp_path: Path) -> None:
    files = {"pod/app/cpu.max": "max 100000\n", "pod/cpu.max": "300000 100000\n"}
    assert cores(tmp_path, "0::/pod/app\n", files) == 3


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": "200000 100000\n"}) == 2


def test_a_quota_of_version_1_limits_the_cores(tmp_path: Path) -> None:
    own = "3:memory:/app\n2:cpu,cpuacct:/app\n"
    files = {
        "cpu,cpuacct/app/cpu.cfs_quota_us": "200000\n",
        "cpu,cpuacct/app/cpu.cfs_period_us": "100000\n",
    }
    assert cores(tmp_path, own, files) == 2


def test_a_quota_of_minus_1_is_none(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert cores(tmp_path, "2:cpu:/\n", files) == 8
