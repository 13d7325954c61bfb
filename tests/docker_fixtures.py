"""Fixtures for tests that need a Docker engine: where none answers, they are no part of the run.

Marked `docker`, they are deselected, not skipped: a run that skips nothing is complete without
them. The first lines of the run say so.
"""

from collections.abc import AsyncIterator, Iterator

import containers
import pytest
from containers import IMAGE, Stack, engine_answers

ABSENT = "docker: no engine answers, so tests of containers are left out"
TOLD = "docker"  # the property of a test that the end of the run tells


def pytest_report_header() -> list[str]:
    return [] if engine_answers() else [ABSENT]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs an engine, where there is none."""
    marked = [item for item in items if item.get_closest_marker("docker")]
    if marked and not engine_answers():
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what tests found out about the image."""
    for report in terminalreporter.getreports("passed"):
        for name, told in report.user_properties:
            if name == TOLD:
                terminalreporter.write_line(f"docker: {told}")


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """Build the image of natsctl, and return its name."""
    containers.build()
    yield IMAGE
    containers.remove()


@pytest.fixture
async def stack(image: str) -> AsyncIterator[Stack]:
    """Run the stack of docker-compose.yml."""
    made = Stack()
    try:
        await made.up()
        yield made
    finally:
        await made.down()
