"""Runs a failed test once more, alone, if it uses real servers and the run has `--flaky`.

A busy machine can starve a server for longer than a test waits. If the test passes alone, the
summary names it as FLAKY with its first failure, and the run goes on. If many tests fail, they
are not flaky, and none is repeated.
"""

import subprocess
import sys

import pytest

FLAKY = "flaky"
REPEATED_MAX = 10
SHOWN_MAX = 3000  # characters of a failure


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--flaky", action="store_true", help="run a failed test of real servers once more, alone"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Repeat the failed tests of real servers, and accept those that pass."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(session.config, "workerinput")  # whose tests the first process repeats
    if is_worker or not session.config.option.flaky or reporter is None:
        return
    failed, errors = (reporter.stats.pop(name, []) for name in ("failed", "error"))
    repeated = {r.nodeid for r in (*failed, *errors) if "server" in getattr(r, "keywords", ())}
    if len(repeated) > REPEATED_MAX:
        repeated = set()
    flaky = {name for name in sorted(repeated) if _passes_alone(name)}
    for outcome, reports in {"failed": failed, "error": errors}.items():
        for report in reports:
            kind = FLAKY if report.nodeid in flaky else outcome
            reporter.stats.setdefault(kind, []).append(report)
            session.testsfailed -= kind == FLAKY
    if session.exitstatus == pytest.ExitCode.TESTS_FAILED and not session.testsfailed:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that failed and then passed alone."""
    for report in terminalreporter.stats.get(FLAKY, ()):
        terminalreporter.write_sep("=", f"FLAKY {report.nodeid}", yellow=True)
        terminalreporter.write_line(str(report.longrepr)[-SHOWN_MAX:])
        terminalreporter.write_line(f"FLAKY {report.nodeid}: passed alone", yellow=True)


def _passes_alone(name: str) -> bool:
    options = ("-q", "-p", "no:cacheprovider", "--no-header", "--no-summary")
    command = [sys.executable, "-m", "pytest", *options, name]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
