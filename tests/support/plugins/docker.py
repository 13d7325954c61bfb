"""Fixtures for tests that need a Docker engine."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.servers.docker import IMAGE, Stack, built

TOLD = "docker"  # the property of a test that the end of the run tells


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what tests found out about the image."""
    for report in terminalreporter.getreports("passed"):
        for name, told in report.user_properties:
            if name == TOLD:
                terminalreporter.write_line(f"docker: {told}")


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """Build the image of natsctl, and return its name."""
    with built(IMAGE) as name:
        yield name


@pytest.fixture
async def stack(image: str) -> AsyncIterator[Stack]:
    """Run the stack of docker-compose.yml."""
    made = Stack()
    try:
        await made.up()
        yield made
    finally:
        await made.down()
