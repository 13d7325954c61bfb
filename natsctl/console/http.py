"""Serves the console over HTTP: its page, its answers, and the checks of every request."""

import asyncio
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from natsctl.console.answers import STATUS, encoded
from natsctl.console.api import Console
from natsctl.daemon.settings.address import Address, reason_of
from natsctl.errors import NatsctlError, NotFoundError, UsageError
from natsctl.operate.problems import Problem, problem_of
from natsctl.telemetry.logger import get_logger

ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
POLICY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer."""


class ConsoleAccess:
    """The secret of one console, and the names under which it may be reached.

    Attributes:
        token: the secret of the printed URL, which each request repeats in a header.
    """

    def __init__(self, host: str) -> None:
        self.token = secrets.token_urlsafe(32)
        self._loopback = is_loopback(host)
        self._names = {"localhost", host.lower()}
        if host in ANY_ADDRESS:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def is_own_name(self, host: str | None) -> bool:
        """Return whether the `Host` header names this console, whatever its port is.

        An address is no name of another site. On the loopback, only loopback addresses are valid.
        """
        name = _name(host or "")
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return address.is_loopback or not self._loopback

    def is_signed_in(self, headers: Mapping[str, str]) -> bool:
        presented = headers.get("Authorization", "").encode(errors="replace")
        return hmac.compare_digest(presented, f"Bearer {self.token}".encode())

    @staticmethod
    def is_own_page(headers: Mapping[str, str]) -> bool:
        """Return whether no other origin sent the request, as far as the browser says."""
        origin = headers.get("Origin")
        return origin is None or origin.partition("://")[2].lower() == headers["Host"].lower()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _name(host: str) -> str:
    """Return the name in a `Host` header, without the port and the brackets of IPv6."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


log = get_logger(__name__)

PORT = 8222
ANSWER_S = 25.0  # the deadline of an answer
CONNECTIONS_MAX = 128  # four per open page, of which there are `FEEDS_MAX`
IDLE_S = 30.0  # the deadline of a connection without a request
PATIENCE_S = 1.0  # a connection that is idle for less doesn't make room for another one
STOP_S = 0.5  # for answers under way when the console stops
SIGNED_OUT = (
    "This page needs the URL that natsctl console printed when it started, with its token. "
    "If the console was started again, its URL is a new one: natsctl console --open opens it."
)

FOLDER = Path(__file__).parent / "page"
VIEWS = ("", "keys", "key", "garbage", "members", "buckets")
"""The first part of each URL that the page itself routes."""

FILES = {"app.js": "text/javascript", "icon.svg": "image/svg+xml", "style.css": "text/css"}

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


class _BoundedServer(web.Server):
    """Bounds the number of connections, and the time of each that waits for a request.

    A connection ends after `IDLE_S` without a request. If there are `CONNECTIONS_MAX`, a new one
    replaces the one that is idle the longest, or is closed if none is for `PATIENCE_S`.
    """

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(handler, handler_cancellation=True, access_log=None)
        self._idle: dict[RequestHandler, asyncio.TimerHandle] = {}  # the longest first

    @contextmanager
    def busy(self, request: web.BaseRequest) -> Iterator[None]:
        """Let the connection of a request last during the context; it has a new deadline then."""
        handler = request.protocol
        self._forget(handler)
        try:
            yield
        finally:
            self._limit(handler)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > CONNECTIONS_MAX and not self._make_room():
            transport.abort()
        else:
            self._limit(handler)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._forget(handler)

    def _limit(self, handler: RequestHandler) -> None:
        if isinstance(handler.transport, asyncio.Transport):
            deadline = asyncio.get_running_loop().call_later(IDLE_S, handler.transport.abort)
            self._idle[handler] = deadline

    def _forget(self, handler: RequestHandler) -> None:
        if handler in self._idle:
            self._idle.pop(handler).cancel()

    def _make_room(self) -> bool:
        """Close the connection that is idle the longest; returns False if none is for long."""
        oldest = next(iter(self._idle), None)
        if oldest is None or not isinstance(oldest.transport, asyncio.WriteTransport):
            return False
        left_s = self._idle[oldest].when() - asyncio.get_running_loop().time()
        if IDLE_S - left_s < PATIENCE_S:
            return False
        self._forget(oldest)
        oldest.transport.abort()
        return True


@asynccontextmanager
async def serving(
    console: Console, access: ConsoleAccess, host: str, port: int | None
) -> AsyncIterator[str]:
    """Serve the console while the context lasts; yields its URL with the token.

    The token is in the fragment, which a browser sends to nobody; the page reads it. Without a
    *port*, it's `PORT` if that is free, or any other. Raises `UsageError` if the process
    can't listen on the address.
    """

    async def respond(request: web.BaseRequest) -> web.StreamResponse:
        with server.busy(request):
            return await _respond(console, access, request)

    server = _BoundedServer(respond)
    runner = web.ServerRunner(server, shutdown_timeout=STOP_S)
    await runner.setup()
    try:
        await _start(runner, host, (PORT, 0) if port is None else (port,))
        bound = Address(Address(host, 0).nearby.host, runner.addresses[0][1])
        yield f"http://{bound}/#token={access.token}"
    finally:
        console.stop()
        await runner.cleanup()


async def _start(runner: web.ServerRunner, host: str, ports: Sequence[int]) -> None:
    for port in ports:
        try:
            return await web.TCPSite(runner, host or None, port).start()
        except (OSError, UnicodeError) as error:
            failure = UsageError(f"cannot listen on {Address(host, port)}: {reason_of(error)}")
    raise failure


async def _respond(
    console: Console, access: ConsoleAccess, request: web.BaseRequest
) -> web.StreamResponse:
    if not access.is_own_name(request.headers.get("Host")):
        return _text(421, "this host name is not one of the console: see --bind\n")
    method, path = request.method, request.path.split("/")[1:]
    if path[:1] != ["api"]:  # the files of the page have no secrets
        return _page(request) if method in {"GET", "HEAD"} else _text(405, "method not allowed\n")
    if not access.is_signed_in(request.headers):
        problem = Problem("signed_out", SIGNED_OUT)
    elif not access.is_own_page(request.headers):
        problem = Problem("refused", "the request does not come from the page")
    else:
        return await _answered(console, method, path[1:], request)
    return _problem(problem)


async def _answered(
    console: Console, method: str, path: list[str], request: web.BaseRequest
) -> web.StreamResponse:
    try:
        if (method, path) == ("GET", ["live"]):
            return await _live(console, request)
        async with asyncio.timeout(ANSWER_S):
            return await _answer(console, method, path, request)
    except web.HTTPException as error:
        return _text(error.status, f"{error.reason}\n")
    except (NatsctlError, TimeoutError) as error:
        problem = problem_of(error)
    except ConnectionError:
        raise
    except Exception:
        log.exception("cannot answer a request of the console")
        problem = Problem("failed", "the console failed: its log has the error")
    return _problem(problem)


async def _answer(
    console: Console, method: str, path: list[str], request: web.BaseRequest
) -> web.Response:
    headers = dict(POLICY)
    match method, path:
        case "GET", ["recording"]:
            name, body = await console.recording(request.query)
            headers["Content-Disposition"] = f'attachment; filename="{name}"'
        case "GET", [question]:
            body = encoded(await console.answer(question, request.query))
        case "POST", ["actions", action]:
            body = encoded(await console.act(action, await request.read()))
        case _:
            raise NotFoundError(f"the console has no answer {request.path}")
    return web.Response(body=body, content_type="application/json", headers=headers)


def _page(request: web.BaseRequest) -> web.Response:
    name = request.path.removeprefix("/")
    if name.partition("/")[0] in VIEWS:
        name, content_type = "index.html", "text/html"
    elif name in FILES:
        content_type = FILES[name]
    else:
        return _text(404, f"the console has no page {request.path}\n")
    body = script() if name == "app.js" else (FOLDER / name).read_bytes()
    charset = None if content_type.startswith("image/") else "utf-8"
    return web.Response(body=body, content_type=content_type, charset=charset, headers=POLICY)


@cache
def script() -> bytes:
    """Return the modules of the page as one script, each behind those that it imports."""
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        text = (FOLDER / name).read_text()
        for imported in _IMPORT.findall(text):
            if imported not in texts:
                add(imported)
        texts[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add("app.js")
    return "\n".join(texts.values()).encode()


async def _live(console: Console, request: web.BaseRequest) -> web.StreamResponse:
    """Send the notices of a view as server-sent events."""
    response = web.StreamResponse(headers={**POLICY, "Content-Type": "text/event-stream"})
    with suppress(ConnectionError):  # the page was closed
        async with aclosing(console.live(request.query)) as notices:
            async for name, data in notices:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(b"event: %b\ndata: %b\n\n" % (name.encode(), encoded(data)))
    return response


def _problem(problem: Problem) -> web.Response:
    body = msgspec.json.encode({"error": problem})
    return web.Response(
        status=STATUS[problem.reason], body=body, content_type="application/json", headers=POLICY
    )


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text, headers=POLICY)
