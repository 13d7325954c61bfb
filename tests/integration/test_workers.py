"""Runs in several workers share servers, and repeat a failed test of real servers with --flaky."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLAIN = "-p no:asyncio -p no:natsctl -p no:hypothesispytest -p no:cacheprovider"
PLUGINS = " ".join(
    f"-p tests.support.plugins.{name}" for name in ("flaky", "shared_servers", "workers")
)
TESTS = """
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


def fails_once(name):
    with Path(name).open("a") as runs:
        is_first = not runs.tell()
        runs.write("run ")
    assert not is_first, "the first failure"


@pytest.mark.server
def test_fails_once():
    fails_once("server")


@pytest.mark.skipif("ALWAYS" not in os.environ, reason="fails")
@pytest.mark.server
def test_fails():
    assert not "for ever"


@pytest.mark.skipif("ALWAYS" not in os.environ, reason="fails")
def test_without_a_server_fails_once():
    fails_once("other")
"""


def run(folder: Path, *options: str, **environ: str) -> tuple[int, str]:
    """Run the tests, and return the exit status and the output of pytest."""
    (folder / "test_all.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(
        f"[pytest]\nmarkers =\n    server\naddopts = {PLUGINS} {PLAIN}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_all.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environ},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_one_worker_runs_the_tests_that_share_a_server_and_a_flaky_test_is_named(
    tmp_path: Path,
) -> None:
    status, output = run(tmp_path, "--flaky", "-n", "2", "--dist", "loadgroup")
    assert status == 0
    assert "FLAKY test_all.py::test_fails_once: passed alone" in output
    assert "the first failure" in output
    assert "12 passed, 2 skipped, 1 flaky in" in output
    assert (tmp_path / "server").read_text() == "run run "
    assert len(list(tmp_path.glob("started-*"))) == 1


def test_a_test_that_fails_again_and_a_test_without_servers_fail_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, "--flaky", ALWAYS="1")
    assert status == 1
    assert "FAILED test_all.py::test_fails - AssertionError: assert not 'for ever'" in output
    assert "FAILED test_all.py::test_without_a_server_fails_once" in output
    assert "2 failed, 12 passed, 1 flaky in" in output


def test_no_test_is_repeated_without_the_option(tmp_path: Path) -> None:
    status, output = run(tmp_path)
    assert (status, "FLAKY" in output) == (1, False)
    assert "1 failed, 12 passed, 2 skipped in" in output
