"""Runs the tests in several processes that share one collection.

`--workers N` collects the tests once, and then forks N processes. A fork takes some milliseconds,
and shares the memory of the collected tests and of the imported modules.
"""

import itertools
import multiprocessing
import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import pytest
from _pytest import runner

from tests.support.cli.forked_process import FORKS, ForkServer
from tests.support.plugins.shared_servers import units
from tests.support.servers.process import die_with_parent

FORK = multiprocessing.get_context("fork")
END_S = 60.0


class Ready(NamedTuple):
    """A worker requests tests. It knows the next test before it ends one."""


class Finished(NamedTuple):
    """A worker ran the first of its tests; *reports* are serialized by pytest."""

    reports: list[dict[str, Any]]


class Warned(NamedTuple):
    """A worker recorded a warning, with the arguments of `pytest_warning_recorded`."""

    arguments: dict[str, Any]


Message = Ready | Finished | Warned


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers",
        type=_count,
        default=0,
        metavar="N",
        help="run the tests in N processes; auto: in one for each processor",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the collected tests in workers, if any are requested."""
    option = session.config.option
    if not option.workers or option.collectonly or session.testsfailed:
        return None
    forks = ForkServer()
    FORKS.share(forks.address)
    try:
        Distribution(session).run(option.workers)
    finally:
        forks.stop()
    return True


class Distribution:
    """Gives units of tests to workers, and reports the results to pytest."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._config = session.config
        self._units = deque(units(session.items))
        self._workers: dict[Connection, Worker] = {}

    def run(self, count: int) -> None:
        """Run all tests. An exception ends the workers after their present tests."""
        if reporter := self._config.pluginmanager.get_plugin("terminalreporter"):
            reporter.showfspath = False  # the results of several files are mixed
        try:
            for _ in range(min(count, len(self._units))):
                self._start()
            while self._workers:
                for connection in wait(list(self._workers)):
                    self._receive(self._workers[connection])  # type: ignore[index]  # as given
        finally:
            self._stop()

    def _start(self) -> None:
        own_end, other_end = FORK.Pipe()
        process = FORK.Process(
            target=_run_tests, args=(self._session, other_end, [own_end, *self._workers])
        )
        process.start()
        other_end.close()
        self._workers[own_end] = Worker(process, own_end, deque())

    def _receive(self, worker: "Worker") -> None:
        try:
            message: Message = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._forget(worker)
            return
        match message:
            case Ready():
                unit = self._units.popleft() if self._units else ()
                worker.pending.extend(unit)
                with suppress(BrokenPipeError):  # the next message is the end
                    worker.connection.send(unit)
            case Finished(reports):
                worker.pending.popleft()
                deserialize = self._config.hook.pytest_report_from_serializable
                for data in reports:
                    self._report(deserialize(config=self._config, data=data))
            case Warned(arguments):
                self._config.hook.pytest_warning_recorded.call_historic(kwargs=arguments)

    def _report(self, report: pytest.TestReport) -> None:
        """Report the result of a phase of a test, and end the session if pytest requests it."""
        self._config.hook.pytest_runtest_logreport(report=report)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _forget(self, worker: "Worker") -> None:
        """Remove a worker that has ended. If tests are left, the first of them ended it."""
        del self._workers[worker.connection]
        worker.connection.close()
        worker.process.join()
        status = worker.process.exitcode
        if worker.pending:
            item = self._session.items[worker.pending.popleft()]
            if worker.pending:
                self._units.appendleft(tuple(worker.pending))
            self._start()
            error = f"the worker ended with status {status} during this test"
            self._report(
                pytest.TestReport(item.nodeid, item.location, {}, "failed", error, when="call")
            )
        elif status:
            raise self._session.Failed(f"a worker ended with status {status} between two tests")

    def _stop(self) -> None:
        for connection in self._workers:
            connection.close()
        for worker in self._workers.values():
            worker.process.join(END_S)
            worker.process.kill()


class Worker(NamedTuple):
    """A process, the connection to it, and the tests that it received and did not report."""

    process: multiprocessing.process.BaseProcess
    connection: Connection
    pending: deque[int]


class Reporter:
    """The plugin of a worker that sends its results."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._running = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        self._running = item.nodeid
        reports = runner.runtestprotocol(item, log=False, nextitem=nextitem)
        serialize = item.config.hook.pytest_report_to_serializable
        data = [serialize(config=item.config, report=report) for report in reports]
        self._connection.send(Finished(data))
        return True

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        if nodeid != self._running:  # pytest repeats the earlier warnings to a new plugin
            return
        plain = warnings.WarningMessage(
            str(warning_message.message),
            warning_message.category,
            warning_message.filename,
            warning_message.lineno,
        )
        arguments = {"warning_message": plain, "when": when, "nodeid": nodeid}
        self._connection.send(Warned({**arguments, "location": location}))


def _run_tests(
    session: pytest.Session, connection: Connection, inherited: Sequence[Connection]
) -> None:
    """Run tests in a worker until there are no more, or the connection is closed."""
    die_with_parent()
    for inherited_connection in inherited:
        inherited_connection.close()
    manager = session.config.pluginmanager
    if capture := manager.get_plugin("capturemanager"):  # the workers do not share its files
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
    manager.register(Reporter(connection))
    items = itertools.chain((session.items[index] for index in _received(connection)), [None])
    with suppress(BrokenPipeError, ConnectionResetError, EOFError, KeyboardInterrupt):
        for item, following in itertools.pairwise(items):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    runner.pytest_sessionfinish(session)  # ends the fixtures


def _received(connection: Connection) -> Iterator[int]:
    while True:
        connection.send(Ready())
        unit = connection.recv()
        if not unit:
            return
        yield from unit


def _count(text: str) -> int:
    return len(os.sched_getaffinity(0)) if text == "auto" else int(text)
