"""The pytest plugin runs async tests in virtual time, and offers memory stores as fixtures."""

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


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in the folder with the natsctl plugin and without other async plugins."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    plugins = ("no:asyncio", "no:anyio", "no:cacheprovider", "no:natsctl")
    return subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "pytest", "-q", str(folder), *options),
            *(word for plugin in plugins for word in ("-p", plugin)),
            *("-p", "natsctl.testing.pytest_plugin"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_plugin_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugins = project["entry-points"]["pytest11"]
    assert plugins == {"natsctl": "natsctl.testing.pytest_plugin"}


def test_the_test_of_the_readme_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", README, re.DOTALL)
    (tmp_path / "test_readme.py").write_text("\n".join(blocks))
    result = run_pytest(tmp_path)
    assert "1 passed" in result.stdout, result.stdout


def test_an_async_test_runs_in_virtual_time_with_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_hours.py").write_text(
        CONTROLLER
        + """
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
    )
    result = run_pytest(tmp_path)
    assert "2 passed" in result.stdout, result.stdout


def test_a_marked_test_runs_in_real_time(tmp_path: Path) -> None:
    (tmp_path / "test_real.py").write_text(
        """
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
    )
    result = run_pytest(tmp_path)
    assert "3 passed" in result.stdout, result.stdout


@pytest.mark.parametrize("marker", ["asyncio", "anyio", "trio"])
def test_a_test_of_another_plugin_is_not_run(tmp_path: Path, marker: str) -> None:
    (tmp_path / "test_other.py").write_text(
        f"import pytest\n\n\n@pytest.mark.{marker}\nasync def test_other():\n    pass\n"
    )
    result = run_pytest(tmp_path, "-o", f"markers={marker}: of another plugin")
    assert "async def functions are not natively supported" in result.stdout, result.stdout


def test_a_failed_async_test_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_fails.py").write_text("async def test_fails():\n    assert 1 == 2\n")
    result = run_pytest(tmp_path)
    assert "1 failed" in result.stdout, result.stdout
    assert "assert 1 == 2" in result.stdout
