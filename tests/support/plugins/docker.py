"""Fixtures for tests that need a Docker engine."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.servers.docker import IMAGE, Stack, built

SUMMARY = "docker"  # the property of a test that the terminal summary prints


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the properties that tests recorded about the image."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == SUMMARY:
                terminalreporter.write_line(f"docker: {value}")


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    with built(IMAGE) as name:
        yield name


@pytest.fixture
async def stack(image: str) -> AsyncIterator[Stack]:
    running_stack = Stack()
    try:
        await running_stack.up()
        yield running_stack
    finally:
        await running_stack.down()
