"""The pytest plugin: async tests run in virtual time, and memory stores are fixtures.

Pytest loads it through the entry point `natsctl`; `-p no:natsctl` turns it off. It runs the async
test functions that no other plugin runs: pytest-asyncio, anyio and trio keep theirs.
"""

import asyncio
import inspect
from collections.abc import Callable

import pytest

from natsctl.testing.cluster import MemoryCluster
from natsctl.testing.jetstream import MemoryJetStream
from natsctl.testing.memory import MemoryStores
from natsctl.testing.time import VirtualTimeLoop
from natsctl.testing.watched import RecordedEvent

_OTHER_PLUGINS = ("asyncio", "anyio", "trio")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "real_time: run this async test in a real event loop, not in virtual time"
    )


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that no other plugin runs, in virtual time unless it has `real_time`."""
    test = pyfuncitem.obj
    marked = any(pyfuncitem.get_closest_marker(name) for name in _OTHER_PLUGINS)
    if marked or not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters.keys() & pyfuncitem.funcargs.keys()
    real = pyfuncitem.get_closest_marker("real_time") is not None
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None if real else VirtualTimeLoop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def memory_stores() -> MemoryStores:
    """Return empty stores for `running(controller, stores=memory_stores)`."""
    return MemoryStores()


@pytest.fixture
def memory_cluster(memory_stores: MemoryStores) -> MemoryCluster:
    """Return the cluster beside `memory_stores`, which keeps Kubernetes objects."""
    return memory_stores.kube


@pytest.fixture
def memory_jetstream(memory_stores: MemoryStores) -> MemoryJetStream:
    """Return the JetStream API of `memory_stores`, with its streams and consumers."""
    return memory_stores.jetstream


@pytest.fixture
def recorded_events(memory_stores: MemoryStores) -> list[RecordedEvent]:
    """Return the list to which controllers over `memory_stores` add the events they record."""
    return memory_stores.events.events
