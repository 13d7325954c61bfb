"""Tests marked `virtual`, and all under unit/, property/ and scenarios/, run in virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from natsctl.testing.time import VirtualTimeLoop

VIRTUAL = ("unit", "property", "scenarios")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    folder = item.path.relative_to(config.rootpath / "tests").parts[0]
    if folder in VIRTUAL or item.get_closest_marker("virtual"):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}
