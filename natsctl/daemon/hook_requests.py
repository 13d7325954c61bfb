"""Carries the requests of hooks from an event loop that isn't connected to NATS.

A simulation and a replay run in virtual time, and over stores in memory. The decision is still the
service's: a thread of its own keeps the connection, and virtual time stands still meanwhile.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from natsctl.controller.hook import HookController
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import connect

T = TypeVar("T")

MORE_S = 5.0  # than the limit of a request, until an unresponsive thread is given up


def carry_requests(controller: type[object], options: NatsOptions) -> None:
    """Let instances of a `HookController` ask its service, until this process ends.

    Does nothing for other classes. Raises `ConnectError` if no server is reachable.
    """
    if issubclass(controller, HookController):
        controller.requests = _Requests(options)


class _Requests:
    def __init__(self, options: NatsOptions) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._context = connect(options)
        self._nats = self._run(self._context.__aenter__()).result()
        atexit.register(self._close)

    async def request(
        self, subject: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> bytes:
        sent = self._run(self._nats.request(subject, body, headers=headers, timeout_s=timeout_s))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: sent.result(timeout_s + MORE_S))

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _close(self) -> None:
        self._run(self._context.__aexit__(None, None, None)).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
