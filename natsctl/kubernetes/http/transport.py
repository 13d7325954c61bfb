"""Requests to a kube-apiserver and their answers, as bytes."""

import asyncio
import io
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

from natsctl.errors import (
    InvalidObjectError,
    NatsctlError,
    PermissionDeniedError,
    StoreError,
    StoreTimeoutError,
    TooLargeError,
    WatchBrokenError,
)
from natsctl.kubernetes.access.login import Access, Login
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.http.api_errors import error_of, read_refusal
from natsctl.kubernetes.http.connection_errors import explained
from natsctl.kubernetes.http.lines import LineStream
from natsctl.kubernetes.http.request import Asked, asked, http_span
from natsctl.kubernetes.http.server_warnings import ServerWarnings
from natsctl.kubernetes.http.wire import Reply
from natsctl.telemetry.tracing import Span, trace_headers

log = logging.getLogger(__name__)

PAUSE_MIN_S = 0.1  # before a call is sent again, doubling
PAUSE_MAX_S = 5.0
REFUSAL_MAX_BYTES = 64 * 1024
PIECE_BYTES = 1024 * 1024  # the largest body that is sent as a whole

_READS = ("GET", "HEAD")
_PASSING = (429, 500, 502, 503, 504)
_LASTING = (TooLargeError, InvalidObjectError)  # reported as 500, but no retry changes them
_SUCCESS = range(200, 300)

NO_ANSWER = "<error>"  # in the place of a status, as client-go counts it


class _Ask(msgspec.Struct, frozen=True, gc=False):
    """A request to be made, once or several times."""

    method: str
    path: str
    query: Mapping[str, str] | None
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    safe: bool  # to be repeated although it may have been done

    @property
    def what(self) -> Asked:
        return asked(self.method, self.path, self.query)


class _Failed(msgspec.Struct, frozen=True):
    """An attempt that came to nothing."""

    error: StoreError
    again: bool = False
    after_s: float | None = None  # as the server asks
    stale: bool = False  # our credentials, or what we trust, may be out of date
    status: int | None = None  # what the server answered, if it did


Outcome = TypeVar("Outcome", Reply | _Failed, aiohttp.ClientResponse | _Failed)


class Transport:
    """Calls and watch streams to one cluster, as one user; made by `transport.connecting`.

    `server` is its URL, without secrets; `namespace` that of what names none. `answers` counts
    attempts by the status of the answer, `<error>` where none came or it broke off, and the method.

    *Guarantees.* Every call ends within its deadline. Not more calls than the options say are on
    their way at once. What may have been done is never sent twice, unless it reads, or the caller
    says that this is safe. No text of an error holds a credential.
    """

    def __init__(
        self, session: aiohttp.ClientSession, access: Access, login: Login, options: KubeOptions
    ) -> None:
        self.server = access.server
        self.namespace = access.namespace
        self.answers: Counter[tuple[str, str]] = Counter()
        self._warnings = ServerWarnings()
        self._session = session
        self._login = login
        self._options = options
        self._slots = asyncio.Semaphore(options.in_flight_max)
        self._clock = asyncio.get_running_loop().time

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
        """Send a request and return its 2xx answer.

        Args:
            method: GET, POST, PATCH and so on, in capitals.
            path: the path, percent-encoded where it has to be.
            query: names and values, as they are.
            body: the body, encoded.
            content_type: what the body is.
            accept: what the answer shall be.
            safe: doing it twice does no harm; None means that only what reads is safe. Safe calls
                are repeated, later and later, after a connection that broke, 500, 502, 503 and
                504; any call is after 429, and where the server was not reached.
            timeout_s: the seconds that all of it may take; None means the options'.

        Raises what `failures.error_of` says for a refusal; `StoreTimeoutError` where no answer
        came in time, or the connection broke, and whether it was done is unknown; `StoreError`
        where the server was not reached; `TooLargeError` for an answer that is too large.
        """
        limit_s = self._options.timeout_s if timeout_s is None else timeout_s
        safe = method in _READS if safe is None else safe
        content = () if body is None else (("Content-Type", content_type),)
        ask = _Ask(method, path, query, (("Accept", accept), *content), body, safe)
        deadline = self._clock() + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                return await self._persist(ask, deadline)
        except TimeoutError as error:
            self.answers[NO_ANSWER, method] += 1
            raise _unknown(ask, f"{self.server} does not answer within {limit_s:g} s") from error

    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        accept: str = "application/json",
        silence_s: float,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a watch; give its lines, which end when the server ends it.

        Entering raises what `failures.error_of` says for a refusal. Entering and iterating raise
        `WatchBrokenError` where the connection cannot be had or breaks, where nothing comes for
        *silence_s* seconds, not a byte, and where a line is longer than the options allow.
        Nothing is repeated. Leaving closes the connection.
        """
        ask = _Ask("GET", path, query, (("Accept", accept),), None, safe=True)
        return self._streaming(ask, silence_s)

    async def _persist(self, ask: _Ask, deadline: float) -> Reply:
        """Try until it is answered, refused for good, or no time is left."""
        renewed, unsure, attempt = False, False, 1
        while True:
            access = await self._login.current()
            outcome = await self._attempt(ask, access)
            if isinstance(outcome, Reply):
                return outcome
            if outcome.stale and not renewed:
                renewed = True
                await self._renew(access, outcome)
                continue
            unsure = unsure or isinstance(outcome.error, StoreTimeoutError)
            pause_s = _pause_s(attempt) if outcome.after_s is None else outcome.after_s
            in_time = self._clock() + pause_s < deadline
            if not (outcome.again and in_time and attempt < self._options.attempts_max):
                raise _given_up(ask, outcome, unsure=unsure)
            log.debug("again in %.1f s: %s", pause_s, outcome.error)
            await asyncio.sleep(pause_s)
            attempt += 1

    async def _renew(self, access: Access, refused: _Failed) -> None:
        """Have new credentials; where there are none, the refusal stands, and says why."""
        try:
            await self._login.renewed(access)
        except NatsctlError as error:
            raise PermissionDeniedError(
                f"{refused.error}; no new credentials can be had: {error}"
            ) from error

    async def _attempt(self, ask: _Ask, access: Access) -> Reply | _Failed:
        async with self._slots:
            with _span(ask, access) as span:
                return _told(span, await self._send(ask, access))

    async def _send(self, ask: _Ask, access: Access) -> Reply | _Failed:
        try:
            async with self._request(ask, access) as response:
                return await self._answer(ask, access, response)
        except (aiohttp.ClientError, OSError) as error:
            return self._unanswered(ask, error)

    def _request(
        self, ask: _Ask, access: Access
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        query = _encoded(tuple(ask.query.items())) if ask.query else ""
        return self._session.request(
            ask.method,
            URL(f"{access.server}{ask.path}{query}", encoded=True),
            data=_sendable(ask.body),
            headers=access.headers + ask.headers + trace_headers(),
            allow_redirects=False,
            ssl=access.tls,
            server_hostname=access.server_name,
            proxy=access.proxy,
        )

    async def _answer(
        self, ask: _Ask, access: Access, response: aiohttp.ClientResponse
    ) -> Reply | _Failed:
        self._note(ask, response)
        if response.status not in _SUCCESS:
            return _refused(ask, access, response, await _read(response, REFUSAL_MAX_BYTES))
        body = await _read(response, self._options.answer_max_bytes)
        if len(body) > self._options.answer_max_bytes:
            return _Failed(
                TooLargeError(
                    f"cannot {ask.what}: the answer is larger than "
                    f"{self._options.answer_max_bytes} bytes; ask for less at a time"
                )
            )
        return Reply(response.status, body, response.headers.get("Date", ""))

    def _note(self, ask: _Ask, response: aiohttp.ClientResponse) -> None:
        """Count the answer, and log what the server warns of."""
        self.answers[str(response.status), ask.method] += 1
        self._warnings.log(response.headers.getall("Warning", ()))

    def _unanswered(self, ask: _Ask, error: Exception) -> _Failed:
        self.answers[NO_ANSWER, ask.method] += 1
        broken = explained(error)
        if not broken.sent:
            told = f"cannot {ask.what}: {self.server} is not reached: {broken.reason}"
            failed: StoreError = StoreError(told)
        else:
            failed = _unknown(ask, f"the connection to {self.server} broke: {broken.reason}")
        failed.__cause__ = error
        again = not broken.certificate and (ask.safe or not broken.sent)
        return _Failed(failed, again=again, stale=broken.certificate)

    @asynccontextmanager
    async def _streaming(self, ask: _Ask, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with asyncio.timeout(silence_s):
                response = await self._open(ask)
        except TimeoutError as error:
            raise WatchBrokenError(
                f"cannot {ask.what}: {self.server} does not answer within {silence_s:g} s"
            ) from error
        try:
            yield LineStream(response.content, ask.what, silence_s, self._options.answer_max_bytes)
        finally:
            _cut(response)

    async def _open(self, ask: _Ask) -> aiohttp.ClientResponse:
        access = await self._login.current()
        opened = await self._begin(ask, access)
        if isinstance(opened, _Failed) and opened.stale:
            await self._renew(access, opened)
            opened = await self._begin(ask, await self._login.current())
        if isinstance(opened, _Failed):
            raise opened.error
        return opened

    async def _begin(self, ask: _Ask, access: Access) -> aiohttp.ClientResponse | _Failed:
        """Send the request and return the response, whose body is still to come."""
        with _span(ask, access) as span:
            return _told(span, await self._respond(ask, access))

    async def _respond(self, ask: _Ask, access: Access) -> aiohttp.ClientResponse | _Failed:
        try:
            response = await self._request(ask, access).__aenter__()
            self._note(ask, response)
            if response.status in _SUCCESS:
                return response
            async with response:
                return _refused(ask, access, response, await _read(response, REFUSAL_MAX_BYTES))
        except (aiohttp.ClientError, OSError) as error:
            failed = self._unanswered(ask, error)
            broken = WatchBrokenError(str(failed.error))
            broken.__cause__ = error
            return msgspec.structs.replace(failed, error=broken)


@lru_cache(maxsize=256)
def _encoded(query: tuple[tuple[str, str], ...]) -> str:
    """Return the end of a URL; that of writes is the same again and again."""
    return f"?{urlencode(query)}"


def _sendable(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a large body as one that aiohttp sends piece by piece."""
    return body if body is None or len(body) <= PIECE_BYTES else io.BytesIO(body)


def _refused(ask: _Ask, access: Access, response: aiohttp.ClientResponse, body: bytes) -> _Failed:
    if access.secret:
        body = body.replace(access.secret.encode(), b"***")
    error = error_of(read_refusal(response.status, body), ask.what)
    nothing_done = response.status == HTTPStatus.TOO_MANY_REQUESTS
    passing = response.status in _PASSING and not isinstance(error, _LASTING)
    after = response.headers.get("Retry-After", "")
    return _Failed(
        error,
        again=passing and (ask.safe or nothing_done),
        after_s=float(after) if after.isdecimal() else None,
        stale=response.status == HTTPStatus.UNAUTHORIZED,
        status=response.status,
    )


def _span(ask: _Ask, access: Access) -> Span:
    return http_span(ask.method, lambda: ask.what, access.server, ask.path)


def _told(span: Span, outcome: Outcome) -> Outcome:
    """Return the outcome of a request, and tell its span."""
    if outcome.status is not None:
        span.note({"http.response.status_code": outcome.status})
    if isinstance(outcome, _Failed):
        span.fail(outcome.error)
    return outcome


def _unknown(ask: _Ask, why: str) -> StoreTimeoutError:
    unknown = "" if ask.method in _READS else "; whether it took effect is unknown"
    return StoreTimeoutError(f"cannot {ask.what}: {why}{unknown}")


def _given_up(ask: _Ask, last: _Failed, *, unsure: bool) -> StoreError:
    """Return the error to raise; what an earlier attempt may have done is still unknown."""
    told = ask.method in _READS or isinstance(last.error, StoreTimeoutError)
    if told or not (last.again and unsure):
        return last.error
    unknown = StoreTimeoutError(f"{last.error}; whether it took effect is unknown")
    unknown.__cause__ = last.error
    return unknown


def _cut(response: aiohttp.ClientResponse) -> None:
    """Close the connection at once, whether or not the other side agrees."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body, or a little more than *limit* bytes of a larger one."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            _cut(response)
            break
    return b"".join(pieces)


def _pause_s(attempt: int) -> float:
    longest = min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0 ** (attempt - 1))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter only
