"""Combines the probes and metrics of all processes of a supervisor into one page each."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence

from natsctl.daemon.http.checks import Check, CheckVerdict, Endpoint
from natsctl.daemon.http.probe import read_page
from natsctl.daemon.processes.supervisor import ProcessState
from natsctl.errors import NoDaemonError
from natsctl.telemetry.metric_sums import LABEL, MetricSums, ProcessPage
from natsctl.telemetry.metrics import MetricTable, rendered

ANSWER_S = 3.0  # the deadline of a process's response
SUPERVISOR = "supervisor"  # the label of the supervisor's own metrics

_CHECK = re.compile(r"\[([+-])\](\S+) (?:ok|failed: (.*))")

PROCESSES = MetricTable[ProcessState](
    (LABEL,),
    counters={
        "natsctl_process_restarts_total": (
            "Times that the supervisor restarted the process.",
            lambda process: process.restarts,
        ),
    },
    gauges={
        "natsctl_process_up": (
            "1 if the process runs and has loaded its controllers.",
            lambda process: process.socket is not None,
        ),
    },
)


class CombinedPages:
    """The content of the endpoints of a supervisor.

    Args:
        states: returns the state of each process.
    """

    watchdog = None  # no handler runs in a supervisor

    def __init__(self, states: Callable[[], Sequence[ProcessState]]) -> None:
        self._states = states
        self._sums = MetricSums()
        self._stopping = False

    def stop(self) -> None:
        """Report from now on that the processes are not ready, because they are stopping."""
        self._stopping = True

    async def check(self, endpoint: Endpoint) -> CheckVerdict:
        """Return the checks of all processes.

        All processes must be ready. A process that restarts is not ready, but does not make the
        supervisor fail `livez`.
        """
        states = self._states()
        stopping = self._stopping and endpoint == "readyz"
        own = Check("shutdown", "stopping") if stopping else Check("ping")
        checks = await asyncio.gather(*(_checks(state, endpoint) for state in states))
        return CheckVerdict(
            endpoint, (own, *(check for process_checks in checks for check in process_checks))
        )

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the page for Prometheus and its content type, see `MetricSums`."""
        states = self._states()
        texts = await asyncio.gather(*(_text(state, "/metrics") for state in states))
        pages = [
            ProcessPage(state.number, state.restarts, text)
            for state, text in zip(states, texts, strict=True)
        ]
        own = PROCESSES.families({(str(state.number),): state for state in states})
        return rendered([*self._sums.families(pages, own=SUPERVISOR), *own], accept)


async def _checks(state: ProcessState, endpoint: Endpoint) -> Sequence[Check]:
    """Return the checks of one process, named after it."""
    name = f"process-{state.number}"
    if state.socket is None:
        return (Check(name, "" if endpoint == "livez" else state.failure),)
    try:
        response = await read_page(state.socket, f"/{endpoint}?verbose", answer_s=ANSWER_S)
    except NoDaemonError as error:
        return (Check(name, str(error)),)
    return tuple(_parsed(name, response.text))


def _parsed(process: str, text: str) -> Iterator[Check]:
    for line in text.splitlines():
        match = _CHECK.match(line)
        if match is not None:
            yield Check(f"{process}/{match[2]}", match[3] or "")


async def _text(state: ProcessState, path: str) -> str | None:
    """Return a page of a process; None if it does not respond."""
    if state.socket is None:
        return None
    try:
        response = await read_page(state.socket, path, answer_s=ANSWER_S)
    except NoDaemonError:
        return None
    return response.text if response.passed else None
