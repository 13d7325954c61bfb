"""Hooks of all tests.

Tests marked `virtual`, and all tests in unit/, property/ and scenarios/, run in virtual time. A run
in CI fails if it skips a test.
"""

import asyncio
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from natsctl.testing import VirtualTimeLoop, pytest_plugin

pytest_plugins = [
    "tests.support.plugins.temporary_files",
    "tests.support.plugins.shared_servers",
    "tests.support.plugins.server_location",
    "tests.support.plugins.requirements",
    "tests.support.plugins.docker",
    "tests.support.plugins.kubernetes",
    "tests.support.plugins.nats",
    "tests.support.plugins.workers",
    "tests.support.plugins.flaky",
]

# No property test has a deadline: its result must not depend on the speed of the machine. Every
# run tries 20 examples of each property, `make test-long` 200 (--hypothesis-profile=long). In the
# gate (CI), each run tries the same examples, so that no change fails for an older fault.
for profile, examples in {"short": 20, "long": 200}.items():
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        derandomize=profile == "short" and "CI" in os.environ,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("short")

VIRTUAL = ("unit", "property", "scenarios")
WITHOUT_SERVERS = (*VIRTUAL, "simulation", "architecture", "typing", "model")
SERVERS = {"nats", "kube"}  # as parameters of the contract suite name them


def pytest_configure(config: pytest.Config) -> None:
    """Load natsctl's own plugin if the installed metadata does not name it, and handle SIGINT.

    A shell lets the processes that it starts in the background ignore SIGINT.
    """
    if not config.pluginmanager.has_plugin("natsctl"):
        config.pluginmanager.register(pytest_plugin, "natsctl")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Free no memory during the collection of the tests, which is a quarter faster so."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep no bytecode of modules that tests write, and leave what exists out of collections.

    Bytecode is stale if a test writes a module twice within a second. The collection has compiled
    the modules of this repository.
    """
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    gc.freeze()  # the collected tests are a million objects
    gc.enable()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if _is_virtual(item):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start a real server."""
    for item in items:
        folder = _folder(item)
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        in_memory = folder == "contract" and SERVERS.isdisjoint(map(str, parameters))
        if folder not in WITHOUT_SERVERS and not in_memory:
            item.add_marker("server")


def _is_virtual(item: pytest.Item) -> bool:
    return _folder(item) in VIRTUAL or item.get_closest_marker("virtual") is not None


def _folder(item: pytest.Item) -> str:
    """Return the folder in tests/ that has the test. Paths are slow for thousands of tests."""
    return item.nodeid.split("/", 2)[1]


@pytest.fixture(autouse=True)
def _draws_are_repeatable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test in virtual time draw the same jitter and names of processes in each run."""
    if not _is_virtual(request.node):
        return
    random.seed(request.node.nodeid)
    secrets = SimpleNamespace(token_hex=lambda count: random.randbytes(count).hex())
    lease = "natsctl.core.coordination.lease"
    monkeypatch.setattr(f"{lease}.secrets", secrets)
    monkeypatch.setattr(f"{lease}.os", SimpleNamespace(getpid=lambda: 1))
    monkeypatch.setattr(f"{lease}.socket", SimpleNamespace(gethostname=lambda: "simulated"))


@pytest.fixture(autouse=True)
def _logs_are_as_before() -> Iterator[None]:
    """Remove the log handlers that a command installed: their streams are closed."""
    root = logging.getLogger()
    level = root.level
    yield
    if root.level != level:
        root.setLevel(level)
    for name, logger in logging.root.manager.loggerDict.items():
        is_changed = isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
        if is_changed and name.startswith("natsctl"):
            logging.getLogger(name).setLevel(logging.NOTSET)  # empties the caches of all loggers
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI that skipped a test."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("tests were skipped, which CI does not accept", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
