"""Runs in several workers share servers, and repeat a failed test of real servers with --flaky."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = "-p no:asyncio -p no:natsctl -p no:hypothesispytest -p no:cacheprovider"
TESTS = """
from pathlib import Path

import pytest

pytestmark = pytest.mark.{mark}


def test_fails_once():
    has_failed = Path("failed").exists()
    Path("failed").touch()
    assert has_failed, "the first failure"


def test_passes():
    pass


def test_fails():
    assert not {always}, "for ever"
"""


GROUPED = """
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kube_server():
    Path("started-" + str(os.getpid())).touch()


@pytest.mark.parametrize("number", range(6))
def test_server(kube_server, number):
    pass


@pytest.mark.parametrize("number", range(6))
def test_other(number):
    pass
"""


def run(
    folder: Path, *options: str, mark: str = "server", always: bool = False, tests: str = TESTS
) -> tuple[int, str]:
    """Run the tests, and return the exit status and the output of pytest."""
    (folder / "test_all.py").write_text(tests.format(mark=mark, always=always))
    markers = "[pytest]\nmarkers =\n    server\n    other\n"
    (folder / "pytest.ini").write_text(
        f"{markers}addopts = -p tests.support.plugins.flaky {PLAIN}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_all.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_test_that_passes_alone_is_named_as_flaky_with_its_failure(tmp_path: Path) -> None:
    status, output = run(tmp_path, "--flaky", "-n", "2", "--dist", "loadgroup")
    assert status == 0
    assert "FLAKY test_all.py::test_fails_once: passed alone" in output
    assert "the first failure" in output
    assert "2 passed, 1 flaky in" in output


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, "--flaky", always=True)
    assert status == 1
    assert "FAILED test_all.py::test_fails - AssertionError: for ever" in output
    assert "1 failed, 1 passed, 1 flaky in" in output


@pytest.mark.parametrize(("options", "mark"), [((), "server"), (("--flaky",), "other")])
def test_no_other_failed_test_is_repeated(
    options: tuple[str, ...], mark: str, tmp_path: Path
) -> None:
    status, output = run(tmp_path, *options, mark=mark)
    assert (status, "FLAKY" in output) == (1, False)
    assert "1 failed, 2 passed in" in output


def test_one_worker_runs_the_tests_that_share_a_server(tmp_path: Path) -> None:
    plugins = ("shared_servers", "workers")
    options = [word for name in plugins for word in ("-p", f"tests.support.plugins.{name}")]
    _, output = run(tmp_path, *options, "-n", "2", "--dist", "loadgroup", tests=GROUPED)
    assert "12 passed" in output
    assert len(list(tmp_path.glob("started-*"))) == 1
