"""Serves the console over HTTP: its page, its answers, and the checks of every request."""

import asyncio
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from email.message import Message
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from natsctl.console.answers import STATUS, encoded
from natsctl.console.api import Console
from natsctl.daemon.server import HttpRequest, HttpServer
from natsctl.daemon.settings.settings import Address
from natsctl.errors import NatsctlError, NotFoundError, UsageError
from natsctl.operate.statuses import Problem, problem_of
from natsctl.telemetry.logger import get_logger

T = TypeVar("T")

log = get_logger(__name__)

ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
PORT = 8222
ANSWER_S = 25.0  # the deadline of an answer
BODY_MAX = 1_048_576  # bytes of a request
CONNECTIONS_MAX = 128  # four per open page, of which there are `FEEDS_MAX`
WAIT_S = 30.0  # the deadline of a request
PATIENCE_S = 1.0  # a younger connection doesn't make room for another one
JSON = "application/json"
SIGNED_OUT = (
    "This page needs the URL that natsctl console printed when it started, with its token. "
    "If the console was started again, its URL is a new one: natsctl console --open opens it."
)
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

FOLDER = Path(__file__).parent / "page"
VIEWS = ("", "keys", "key", "garbage", "members", "buckets")
"""The first part of each URL that the page itself routes."""

FILES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


class ConsoleAccess:
    """The token of one console, which each request repeats, and the names that reach it."""

    def __init__(self, host: str) -> None:
        self.token = secrets.token_urlsafe(32)
        self._loopback = is_loopback(host)
        self._names = {"localhost", host.lower()}
        if host in ANY_ADDRESS:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def is_own_name(self, host: str) -> bool:
        """Return whether the `Host` header names this console, whatever its port is.

        An address is no name of another site. On the loopback, only loopback addresses are valid.
        """
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return address.is_loopback or not self._loopback

    def refusal(self, headers: Message) -> Problem | None:
        presented = headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(presented, f"Bearer {self.token}".encode()):
            return Problem("signed_out", SIGNED_OUT)
        origin = headers.get("Origin")
        if origin is None or origin.partition("://")[2].lower() == headers["Host"].lower():
            return None
        return Problem("refused", "the request does not come from the page")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@asynccontextmanager
async def serving(
    console: Console, access: ConsoleAccess, host: str, port: int | None
) -> AsyncIterator[str]:
    """Serve the console while the context lasts; yields its URL with the token.

    The token is in the fragment, which a browser sends to nobody; the page reads it. Without a
    *port*, it's `PORT` if that is free, or any other. Raises as `HttpServer` does.
    """
    listen = partial(
        HttpServer,
        answer=_Site(console, access).answer,
        headers=POLICY,
        connections_max=CONNECTIONS_MAX,
        connection_s=WAIT_S,
        patience_s=PATIENCE_S,
    )
    try:
        server = listen(Address(host, PORT if port is None else port))
    except UsageError:
        if port is not None:
            raise
        server = listen(Address(host, 0))
    with server.serving():
        try:
            bound = Address(server.address.nearby.host, server.address.port)
            yield f"http://{bound}/#token={access.token}"
        finally:
            console.stop()


class _Site:
    def __init__(self, console: Console, access: ConsoleAccess) -> None:
        self._console, self._access = console, access
        self._loop = asyncio.get_running_loop()

    def answer(self, request: HttpRequest) -> None:
        request.last()
        url = urlsplit(request.path)
        path = url.path.split("/")[1:]
        if not self._access.is_own_name(request.headers.get("Host") or ""):
            text = "this host name is not one of the console: see --bind\n"
            request.send(HTTPStatus.MISDIRECTED_REQUEST, text)
        elif path[:1] != ["api"]:  # the files of the page have no secrets
            _send_page(request, url.path)
        elif (problem := self._access.refusal(request.headers)) is not None:
            _send_problem(request, problem)
        else:
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            try:
                self._answer(request, path[1:], query)
            except (NatsctlError, TimeoutError) as error:
                _send_problem(request, problem_of(error))
            except OSError:
                raise
            except Exception:
                log.exception("cannot answer a request of the console")
                failed = Problem("failed", "the console failed: its log has the error")
                _send_problem(request, failed)

    def _answer(self, request: HttpRequest, path: list[str], query: Mapping[str, str]) -> None:
        match request.command, path:
            case "GET", ["live"]:
                return self._send_notices(request, query)
            case "GET", [question]:
                body = encoded(self._result(request, self._console.answer(question, query)))
            case "POST", ["actions", action]:
                length = request.headers.get("Content-Length") or ""
                size = int(length) if length.isdecimal() else 0
                given = request.rfile.read(min(size, 2 * BODY_MAX))
                if size > BODY_MAX:
                    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                    return request.send(status, "the request is too large\n")
                body = encoded(self._result(request, self._console.act(action, given)))
            case _:
                raise NotFoundError(f"the console has no answer {request.path}")
        return request.send(HTTPStatus.OK, body, JSON)

    def _result(self, request: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            async with asyncio.timeout(ANSWER_S):
                return await work

        return request.result(limited(), self._loop)

    def _send_notices(self, request: HttpRequest, query: Mapping[str, str]) -> None:
        notices, begun = self._console.live(query), False

        async def following() -> tuple[str, dict[str, object]] | None:
            return await anext(notices, None)

        while (notice := request.result(following(), self._loop)) is not None:
            if not begun:
                request.begin(HTTPStatus.OK, "text/event-stream")
                begun = True
            name, data = notice
            request.wfile.write(b"event: %b\ndata: %b\n\n" % (name.encode(), encoded(data)))


def _send_page(request: HttpRequest, path: str) -> None:
    name = path.removeprefix("/")
    name = "index.html" if name.partition("/")[0] in VIEWS else name
    if request.command not in {"GET", "HEAD"}:
        request.refuse_method("GET", "HEAD")
    elif name in FILES:
        body = script() if name == "app.js" else (FOLDER / name).read_bytes()
        request.send(HTTPStatus.OK, body, FILES[name])
    else:
        request.send(HTTPStatus.NOT_FOUND, f"the console has no page {path}\n")


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


def _send_problem(request: HttpRequest, problem: Problem) -> None:
    request.send(STATUS[problem.reason], msgspec.json.encode({"error": problem}), JSON)
