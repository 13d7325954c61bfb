"""Sends requests to a kube-apiserver within a deadline, and retries them if that's safe."""

import asyncio
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import (
    aclosing,
    asynccontextmanager,
    nullcontext,
)
from functools import lru_cache, partial
from http import HTTPStatus
from time import monotonic
from typing import TypeAlias, cast
from urllib.parse import urlencode

import aiohttp
import msgspec

from natsctl.errors import (
    InvalidObjectError,
    NatsctlError,
    PermissionDeniedError,
    StoreError,
    StoreTimeoutError,
    TooLargeError,
    WatchBrokenError,
)
from natsctl.kubernetes.api_errors import (
    RequestInfo,
    error_for,
    read_status,
    request_info,
    request_span,
)
from natsctl.kubernetes.credentials import Access, Login
from natsctl.kubernetes.http import HttpConnection, HttpPool, explain_failure
from natsctl.kubernetes.options import KubeOptions
from natsctl.telemetry.histogram import Histogram
from natsctl.telemetry.logger import Repeats, get_logger
from natsctl.telemetry.tracing import records_spans, trace_headers
from natsctl.time_limit import TimeLimit

log = get_logger(__name__)

MERGE_PATCH = "application/merge-patch+json"
READS = ("GET", "HEAD")

TEXT_MAX = 1000  # characters of a warning

PAUSE_MIN_S = 0.1  # pause before the first retry, doubled for each further one
PAUSE_MAX_S = 5.0
ERROR_BODY_MAX_BYTES = 64 * 1024

_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_TRANSIENT = (429, 500, 502, 503, 504)
_PERMANENT = (TooLargeError, InvalidObjectError)  # some servers answer these with status 500
_SUCCESS = range(200, 300)

TIMES_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""The bounds of the times of requests, as client-go has them."""
NO_RESPONSE = "<error>"  # counted instead of a status, as client-go does


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A successful response: its 2xx status, its body, and its `Date` header."""

    status: int
    body: bytes
    date: str = ""


async def read_lines(
    response: HttpConnection, request: RequestInfo, *, silence_s: float, line_max_bytes: int
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a response until the server ends it, without empty ones.

    Raises `WatchBrokenError` if the connection breaks, if the stream ends in the middle of a line,
    if a line is too long, or if no byte arrives for *silence_s* seconds. Only time spent waiting
    for the server counts, however slow the consumer is.
    """
    silence = TimeLimit(silence_s)
    unfinished: list[bytes] = []  # the beginning of a line that isn't complete
    unfinished_bytes = 0
    while True:
        try:
            with silence:
                chunk = await response.chunk()
        except TimeoutError as error:
            raise WatchBrokenError(f"{request}: nothing came for {silence_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise WatchBrokenError(f"{request}: {explain_failure(error).reason}") from error
        line_end, *later_lines = chunk.split(b"\n")
        unfinished.append(line_end)
        unfinished_bytes += len(line_end)
        if unfinished_bytes > line_max_bytes:
            raise WatchBrokenError(f"a line is longer than {line_max_bytes} bytes")
        if later_lines:
            *lines, rest = b"".join(unfinished), *later_lines
            unfinished, unfinished_bytes = [rest], len(rest)
            for line in filter(None, lines):
                yield line
        if not chunk:
            break
    if unfinished_bytes:
        raise WatchBrokenError("the stream ended in the middle of a line")


def warning_texts(header: str) -> list[str]:
    """Return the texts in `Warning` headers, joined by commas, each on one line.

    Malformed ones are skipped.
    """
    quoted = (match[1] for match in _WARNING.finditer(header))
    lines = (" ".join(_ESCAPED.sub(r"\1", text).split()) for text in quoted)
    return [line[:TEXT_MAX] for line in lines if line]


class _Request(msgspec.Struct, frozen=True, gc=False):
    method: str
    path: str
    query: Mapping[str, str] | None
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    safe: bool  # safe to repeat although an earlier attempt may have taken effect
    streams: bool = False

    @property
    def info(self) -> RequestInfo:
        return request_info(self.method, self.path, self.query)


class _Failure(msgspec.Struct, frozen=True):
    error: StoreError
    retry: bool = False
    retry_after_s: float | None = None  # from the Retry-After header
    renew_access: bool = False  # the credentials, or the trusted CA, may be out of date
    status: int | None = None  # the HTTP status, if there is a response


Outcome: TypeAlias = Reply | HttpConnection | _Failure
"""What one attempt brought; a stream's is a response whose body arrives later."""


class Transport:
    """Calls and watch streams to one cluster as one user. `cluster.connecting` makes it.

    *Guarantees.* Every call ends within its deadline. At most `in_flight_max` calls are in flight.
    A write that may have taken effect isn't sent again unless the caller marks it as safe. No
    error text holds a credential.

    Attributes:
        server: the URL, without secrets.
        namespace: the default namespace.
        answers: attempts by method and by the status of the response, `<error>` if there is none.
    """

    def __init__(self, pool: HttpPool, access: Access, login: Login, options: KubeOptions) -> None:
        self.server = access.server
        self.namespace = access.namespace
        self.answers: Counter[tuple[str, str]] = Counter()
        self.times: defaultdict[str, Histogram] = defaultdict(partial(Histogram, TIMES_S))
        self._pool = pool
        self._login = login
        self._options = options
        self._slots = asyncio.Semaphore(options.in_flight_max)
        self._clock = asyncio.get_running_loop().time
        self._warned = Repeats(self._clock, math.inf)  # each text is logged once
        self._timeout = TimeLimit(options.timeout_s)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        safe: bool | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request and return its 2xx response.

        Args:
            method: the HTTP method in capitals.
            path: the path, percent-encoded.
            query: query parameters, not encoded.
            body: the encoded body.
            content_type: the media type of the body.
            accept: the media type of the response.
            safe: whether a repeated request does no harm; None means that only GET and HEAD are
                safe. A safe request is retried with backoff after a broken connection, 500, 502,
                503 and 504. Any request is retried after 429, and if the server was not reached.
            timeout_s: seconds for all attempts together; None means `KubeOptions.timeout_s`.

        Raises the error that `api_errors.error_for` returns for an error response;
        `StoreTimeoutError` if no response arrives in time or the connection breaks, so that the
        outcome is unknown; `StoreError` if the server isn't reached; `TooLargeError` for a
        response that is too large.
        """
        timeout = self._timeout if timeout_s is None else TimeLimit(timeout_s)
        safe = method in READS if safe is None else safe
        content = () if body is None else (("Content-Type", content_type),)
        request = _Request(method, path, query, (("Accept", accept), *content), body, safe)
        deadline = self._clock() + timeout.limit_s
        try:
            with timeout:
                return cast("Reply", await self._send_until_answered(request, deadline))
        except TimeoutError as error:
            self.answers[NO_RESPONSE, method] += 1
            reason = f"{self.server} does not answer within {timeout.limit_s:g} s"
            raise _unknown_outcome(request, reason) from error

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        accept: str = "application/json",
        silence_s: float,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and yield its lines until the server ends it. Nothing is retried.

        Leaving the context closes the connection. Entering raises the error that
        `api_errors.error_for` returns for an error response. Entering and iterating raise
        `WatchBrokenError` if the connection fails or breaks, if no byte arrives for *silence_s*
        seconds, or if a line is longer than `KubeOptions.answer_max_bytes`.
        """
        request = _Request("GET", path, query, (("Accept", accept),), None, safe=True, streams=True)
        try:
            async with asyncio.timeout(silence_s):
                response = cast("HttpConnection", await self._send_until_answered(request, 0.0))
        except TimeoutError as error:
            raise WatchBrokenError(
                f"cannot {request.info}: {self.server} does not answer within {silence_s:g} s"
            ) from error
        try:
            lines = read_lines(
                response,
                request.info,
                silence_s=silence_s,
                line_max_bytes=self._options.answer_max_bytes,
            )
            async with aclosing(lines):
                yield lines
        finally:
            response.close()

    async def _send_until_answered(
        self, request: _Request, deadline: float
    ) -> Reply | HttpConnection:
        renewed, maybe_done, attempt = False, False, 1
        while True:
            access = await self._login.current()
            async with nullcontext() if request.streams else self._slots:
                outcome = await self._attempt(request, access)
            if not isinstance(outcome, _Failure):
                return outcome
            if outcome.renew_access and not renewed:
                renewed = True
                try:
                    await self._login.renew(access)
                except NatsctlError as error:
                    reason = f"{outcome.error}; the credentials cannot be renewed: {error}"
                    raise PermissionDeniedError(reason) from error
                continue
            timed_out = isinstance(outcome.error, StoreTimeoutError)
            maybe_done, known = maybe_done or timed_out, request.method in READS or timed_out
            pause_s = outcome.retry_after_s
            if pause_s is None:
                longest_s = min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0 ** (attempt - 1))
                pause_s = longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter only
            in_time = self._clock() + pause_s < deadline
            if not (outcome.retry and in_time and attempt < self._options.attempts_max):
                if known or not (outcome.retry and maybe_done):
                    raise outcome.error
                unknown = f"{outcome.error}; whether it took effect is unknown"
                raise StoreTimeoutError(unknown) from outcome.error
            log.debug("retrying request", wait_s=round(pause_s, 1), error=outcome.error)
            await asyncio.sleep(pause_s)
            attempt += 1

    async def _attempt(self, request: _Request, access: Access) -> Outcome:
        if not records_spans():
            return await self._send(request, access)
        info = partial(getattr, request, "info")
        with request_span(request.method, access.server, request.path, info) as span:
            outcome = await self._send(request, access)
            if outcome.status is not None:
                span.note({"http.response.status_code": outcome.status})
            if isinstance(outcome, _Failure):
                span.fail(outcome.error)
            return outcome

    async def _send(self, request: _Request, access: Access) -> Outcome:
        query = _encoded(tuple(request.query.items())) if request.query else ""
        target = f"{request.path}?{query}" if query else request.path
        headers = request.headers + trace_headers()
        method, limit = request.method, self._options.answer_max_bytes
        began = monotonic()
        try:
            try:
                response = await self._pool.send(access, method, target, headers, request.body)
            finally:  # also if there was no response in time
                self.times[method].observe(monotonic() - began)
            self.answers[str(response.status), method] += 1
            for text in warning_texts(response.header(b"warning")):
                if self._warned.due(text):
                    log.warning("server sent a warning", warning=text)
            if response.status not in _SUCCESS:
                return await _error_response(request, access, response)
            if request.streams:
                return response
            status, date = response.status, response.header(b"date")
            body = await response.read(limit)
            if len(body) <= limit:
                return Reply(status, body, date)
            larger = f"cannot {request.info}: the response is larger than {limit} bytes"
            return _Failure(TooLargeError(f"{larger}; request less at a time"))
        except (aiohttp.ClientError, OSError) as error:
            self.answers[NO_RESPONSE, method] += 1
            failure = explain_failure(error)
            reason = f"{self.server} is not reached: {failure.reason}"
            if failure.sent:
                reason = f"the connection to {self.server} broke: {failure.reason}"
            text = f"cannot {request.info}: {reason}"
            store_error = WatchBrokenError(text) if request.streams else StoreError(text)
            if failure.sent and not request.streams:
                store_error = _unknown_outcome(request, reason)
            store_error.__cause__ = error
            retry = not failure.certificate and (request.safe or not failure.sent)
            return _Failure(store_error, retry=retry, renew_access=failure.certificate)


@lru_cache(maxsize=256)
def _encoded(query: tuple[tuple[str, str], ...]) -> str:
    """Return the query of a URL. The cache saves time, because writes repeat a few queries."""
    return urlencode(query)


async def _error_response(request: _Request, access: Access, response: HttpConnection) -> _Failure:
    status, retry_after = response.status, response.header(b"retry-after")
    body = await response.read(ERROR_BODY_MAX_BYTES)
    if access.secret:
        body = body.replace(access.secret.encode(), b"***")
    error = error_for(read_status(status, body), request.info)
    not_processed = status == HTTPStatus.TOO_MANY_REQUESTS
    transient = status in _TRANSIENT and not isinstance(error, _PERMANENT)
    return _Failure(
        error,
        retry=transient and (request.safe or not_processed),
        retry_after_s=float(retry_after) if retry_after.isdecimal() else None,
        renew_access=status == HTTPStatus.UNAUTHORIZED,
        status=status,
    )


def _unknown_outcome(request: _Request, reason: str) -> StoreTimeoutError:
    unknown = "" if request.method in READS else "; whether it took effect is unknown"
    return StoreTimeoutError(f"cannot {request.info}: {reason}{unknown}")
