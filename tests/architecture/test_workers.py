"""Tests that a run with --workers reports all that a run in one process reports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os
import warnings
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def server():
    yield
    Path("ended").touch()


def test_fails(server):
    print("a captured line")
    raise AssertionError


def test_ends_the_process():
    os._exit(7)


def test_warns():
    warnings.warn("a warning to read")


@pytest.mark.parametrize("number", range(20))
def test_passes(number):
    pass
"""


def run(folder: Path, *options: str) -> str:
    """Run the tests in two workers, and return the output of pytest."""
    (folder / "test_all.py").write_text(TESTS)
    support = "tests.support.plugins"
    plugins = ("no:asyncio", f"{support}.shared_servers", f"{support}.workers")
    words = [word for plugin in plugins for word in ("-p", plugin)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--workers", "2", *words, *options, "test_all.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(tmp_path_factory.mktemp("workers"))


def test_each_test_runs_once_though_a_worker_ends(output: str) -> None:
    assert "2 failed, 21 passed" in output


def test_a_test_that_ends_its_worker_fails(output: str) -> None:
    assert "test_ends_the_process - the worker ended with status 7 during this test" in output


def test_a_failure_has_the_captured_output(output: str) -> None:
    assert "a captured line" in output


def test_a_warning_is_reported_once(output: str) -> None:
    assert "UserWarning: a warning to read" in output
    assert ", 1 warning in" in output


def test_a_run_that_stops_early_ends_the_fixtures(tmp_path: Path) -> None:
    assert "stopping after 1 failures" in run(tmp_path, "-x", "-k", "test_fails or test_passes")
    assert (tmp_path / "ended").exists()
