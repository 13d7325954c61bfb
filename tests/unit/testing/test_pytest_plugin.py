"""The pytest plugin runs async tests in virtual time, and offers memory stores as fixtures."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()

CONTROLLER = """
from natsctl import Controller, Object, kv, primary, secondary

THINGS = kv(Object, bucket="things")


class Things(Controller):
    things = primary(THINGS)

    async def sync_handler(self, key):
        self.runtime.event(key, "Normal", "Seen", "here it is")
"""

HOURS = """
import asyncio
from natsctl.testing import running


async def test_hours(tmp_path, memory_stores, memory_cluster, memory_jetstream, recorded_events):
    controller = Things()
    async with running(controller, stores=memory_stores) as harness:
        await controller.things.put("a", Object())
        await harness.run_for(3600)
    assert memory_stores.store(THINGS).keys() == ["a"]
    assert memory_cluster is memory_stores.kube
    assert memory_jetstream.requests == []
    assert {event.reason for event in recorded_events} == {"Seen"}
    assert asyncio.get_running_loop().time() >= 3600


class TestMethods:
    async def test_method(self, memory_stores):
        assert await memory_stores.api("STREAM.NAMES") == {"streams": [], "total": 0}
"""

REAL = """
import asyncio
import pytest
from natsctl.testing import VirtualTimeLoop


@pytest.mark.real_time
async def test_real():
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


async def test_virtual():
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


def test_plain():
    pass
"""

FAILING = "async def test_fails():\n    assert 1 == 2\n"
MARKERS = ["asyncio", "anyio", "trio"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of one plain pytest, without the asyncio plugin, about all tests of this file."""
    folder = tmp_path_factory.mktemp("tests")
    markers = "".join(f"\n    {marker}: of another plugin" for marker in MARKERS)
    (folder / "pytest.ini").write_text(
        f"[pytest]\naddopts = --strict-markers\nmarkers ={markers}\n"
    )
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", README, re.DOTALL)
    (folder / "test_readme.py").write_text("\n".join(blocks))
    (folder / "test_hours.py").write_text(CONTROLLER + HOURS)
    (folder / "test_real.py").write_text(REAL)
    (folder / "test_fails.py").write_text(FAILING)
    for marker in MARKERS:
        (folder / f"test_{marker}.py").write_text(
            f"import pytest\n\n\n@pytest.mark.{marker}\nasync def test_other():\n    pass\n"
        )
    plugins = ("no:asyncio", "no:anyio", "no:cacheprovider", "no:natsctl")
    result = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "pytest", "-v", "-rA", str(folder)),
            *(word for plugin in plugins for word in ("-p", plugin)),
            *("-p", "natsctl.testing.pytest_plugin"),
        ],
        cwd=folder,
        env=os.environ | {"COLUMNS": "200"},  # the summary shows each error in full
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout


def test_the_plugin_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugins = project["entry-points"]["pytest11"]
    assert plugins == {"natsctl": "natsctl.testing.pytest_plugin"}


@pytest.mark.parametrize(
    ("file", "ended"),
    [
        ("test_readme.py", ["PASSED"]),  # as it's printed
        ("test_hours.py", ["PASSED"] * 2),
        ("test_real.py", ["PASSED"] * 3),
        ("test_fails.py", ["FAILED"]),
    ],
)
def test_async_tests_run_in_virtual_time_with_fixtures(
    report: str, file: str, ended: list[str]
) -> None:
    assert re.findall(rf"^([A-Z]+) {re.escape(file)}::", report, re.MULTILINE) == ended, report
    assert "assert 1 == 2" in report


@pytest.mark.parametrize("marker", MARKERS)
def test_a_test_of_another_plugin_is_not_run(report: str, marker: str) -> None:
    not_run = (
        rf"FAILED test_{marker}\.py::test_other - .*async def functions are not natively supported"
    )
    assert re.search(not_run, report), report
