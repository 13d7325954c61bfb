"""Tests that need what a machine may lack: where it does, they are no part of the run.

They are deselected, not skipped: a run that skips nothing is complete without them. The first lines
of the run say what is left out.
"""

import shutil
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support.servers.docker import engine_answers


class Need(NamedTuple):
    """What tests with a marker need: whether it is there, and what is told where it is not."""

    there: Callable[[], bool]
    absent: str


NEEDS = {
    "docker": Need(
        engine_answers, "docker: no engine answers, so tests of containers are left out"
    ),
    "promtool": Need(
        lambda: shutil.which("promtool") is not None,
        "promtool: there is none on the PATH, so tests of what Prometheus is told are left out",
    ),
}


def pytest_report_header() -> list[str]:
    return [need.absent for need in NEEDS.values() if not need.there()]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot be run here."""
    lacking = [
        item
        for item in items
        if any(item.get_closest_marker(name) and not NEEDS[name].there() for name in NEEDS)
    ]
    if lacking:
        config.hook.pytest_deselected(items=lacking)
        items[:] = [item for item in items if item not in lacking]
