"""Deselects tests that need a program or an engine that this machine lacks.

The tests are deselected and not skipped, so a complete run skips nothing. The header of the run
reports which tests are deselected.
"""

import shutil
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support.servers.docker import engine_answers


class Need(NamedTuple):
    """A requirement of tests with a marker: whether it is met, and the text if it is not."""

    is_met: Callable[[], bool]
    absent: str


NEEDS = {
    "docker": Need(
        engine_answers, "docker: no engine answers, so tests of containers are left out"
    ),
    "promtool": Need(
        lambda: all(map(shutil.which, ("prometheus", "promtool"))),
        "prometheus or promtool: not on the PATH, so tests of alerts are left out",
    ),
}


def pytest_report_header() -> list[str]:
    return [need.absent for need in NEEDS.values() if not need.is_met()]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = [
        item
        for item in items
        if any(item.get_closest_marker(name) and not NEEDS[name].is_met() for name in NEEDS)
    ]
    if lacking:
        config.hook.pytest_deselected(items=lacking)
        items[:] = [item for item in items if item not in lacking]
