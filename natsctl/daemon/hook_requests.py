"""Carries the requests of hooks from an event loop that isn't connected to NATS.

A simulation and a replay run in virtual time, and over stores in memory. The decision is still the
service's: a thread of its own keeps the connection, and virtual time stands still meanwhile.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from natsctl.controller.hook import HookController
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import Nats, connect

T = TypeVar("T")

MORE_S = 5.0  # than the limit of a request, until an unresponsive thread is given up


def carry_requests(controller: type[object], options: NatsOptions) -> None:
    """Let instances of a `HookController` ask its service, until this process ends.

    Does nothing for other classes. Raises `ConnectError` if no server is reachable.
    """
    if issubclass(controller, HookController):
        requests = HookRequests(options).__enter__()
        atexit.register(requests.__exit__, None, None, None)
        controller.requests = requests


class HookRequests:
    """Carries requests over a connection of its own while the context lasts; a `Requester`."""

    def __init__(self, options: NatsOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._ended = ExitStack()
        self._nats: Nats | None = None

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._loop.run_forever, name="natsctl-hooks", daemon=True)
        thread.start()
        self._ended.callback(self._loop.close)
        self._ended.callback(thread.join)
        self._ended.callback(self._loop.call_soon_threadsafe, self._loop.stop)
        context = connect(self._options)
        with ExitStack() as failed:
            failed.push(self._ended)
            self._nats = self._run(context.__aenter__()).result()
            self._ended.callback(lambda: self._run(context.__aexit__(None, None, None)).result())
            failed.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.close()

    async def request(
        self, subject: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> bytes:
        """See `Requester.request`."""
        assert self._nats is not None, "requests need `with`"  # noqa: S101 - a caller's mistake
        sent = self._run(self._nats.request(subject, body, headers=headers, timeout_s=timeout_s))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: sent.result(timeout_s + MORE_S))

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
