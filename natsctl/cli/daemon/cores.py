"""Counts the cores that this process may use."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_cores(*, cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """Return the number of cores that this process may use, at least 1.

    The CPU affinity of the process and the CPU quotas of its control groups limit the number. A
    quota of 2.5 cores counts as 2, because a third process would be throttled.

    Args:
        cgroups: where the control groups are mounted.
        own: the file that names the control groups of this process.
    """
    quotas = [int(quota) for quota in _quotas(cgroups, own)]
    return max(1, min([_affinity(), *quotas]))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """Yield the quotas in cores of this process's control groups, from the inner to the outer."""
    for line in _text(own).splitlines():
        _, _, controllers_and_name = line.partition(":")
        controllers, _, name = controllers_and_name.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        folder = root / name.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                quota = _quota_2(group) if not controllers else _quota_1(group)
                if quota is not None:
                    yield quota


def _quota_2(group: Path) -> float | None:
    """Return the quota of a group of version 2: `cpu.max` has the quota and the period."""
    return _cores(*_text(group / "cpu.max").split())


def _quota_1(group: Path) -> float | None:
    """Return the quota of a group of version 1, which has a file for each number."""
    return _cores(
        *_text(group / "cpu.cfs_quota_us").split(), *_text(group / "cpu.cfs_period_us").split()
    )


def _cores(*words: str) -> float | None:
    """Return the quota divided by the period; None if there is no quota."""
    match words:
        case (quota, period) if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
        case _:
            return None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
