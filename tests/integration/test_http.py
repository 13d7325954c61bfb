"""Over HTTP a process is asked how it is: briefly, by few, and never for long."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple

import pytest

from natsctl import Controller, Object, kv, primary
from natsctl.daemon.http.server import CONNECTIONS_MAX, serving
from natsctl.daemon.http.vitals import Verdict, Vitals
from natsctl.daemon.operator import Operator
from natsctl.daemon.settings.address import Address
from natsctl.errors import UsageError
from natsctl.jetstream.connection.connection import ConnectionState
from natsctl.testing.memory import MemoryStores
from tests.support.eventually import eventually

HERE = Address("127.0.0.1", 0)
LIMIT_S = 30.0


class Lamp(Object, frozen=True):
    pass


class Lamps(Controller):
    lamps = primary(kv(Lamp, bucket="lamps"))

    async def sync_handler(self, key: str) -> float | None:
        return None


class Wire:
    """A connection that stands."""

    reconnects = True

    def state(self) -> ConnectionState:
        return ConnectionState(
            connected=True, server="hub", losses=0, since_s=0, errors=0, last_error=None
        )


class Stuck(Vitals):
    """Is asked for metrics and does not come to an end."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        self.asked.set()
        await asyncio.sleep(3600)
        return await super().metrics(accept)


class Broken(Vitals):
    """Fails whatever it is asked."""

    def live(self) -> Verdict:
        raise RuntimeError("broken on purpose")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


async def exchange(at: Address, sent: bytes) -> bytes:
    """Send bytes, and return everything that comes until the connection is closed."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(at.host, at.port)
        try:
            writer.write(sent)
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


async def ask(at: Address, target: str, method: str = "GET", headers: str = "") -> Answer:
    """Ask as a client would that wants to keep the connection."""
    request = f"{method} {target} HTTP/1.1\r\nHost: {at}\r\nConnection: keep-alive\r\n{headers}\r\n"
    head, _, body = (await exchange(at, request.encode())).decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    told = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(status.split()[1]), told, body)


@asynccontextmanager
async def idle(at: Address) -> AsyncIterator[asyncio.StreamReader]:
    """Connect, and say nothing."""
    reader, writer = await asyncio.open_connection(at.host, at.port)
    try:
        yield reader
    finally:
        writer.close()


@pytest.fixture
async def vitals() -> AsyncIterator[Vitals]:
    """Those of a process that runs one controller."""
    operator, found = Operator([Lamps()], nats=MemoryStores()), Vitals()
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    with found.of(Wire(), operator.runtimes):
        yield found
    operator.stop()
    await task


async def test_a_process_that_is_well_says_ok(vitals: Vitals) -> None:
    async with serving(HERE, vitals) as at:
        for path in ("/livez", "/readyz"):
            answer = await ask(at, path)
            assert (answer.status, answer.body) == (200, "ok")
            assert answer.headers["content-type"].startswith("text/plain")
        verbose = await ask(at, "/readyz?verbose")
        assert verbose.body.splitlines() == [
            "[+]nats ok",
            "[+]controller/lamps ok",
            "[+]cache/lamps/lamps ok",
            "readyz check passed",
        ]


async def test_a_process_that_is_not_ready_says_why_with_503_and_lives() -> None:
    async with serving(HERE, Vitals()) as at:
        answer = await ask(at, "/readyz")
        assert answer.status == 503
        assert answer.body.endswith("readyz check failed\n")
        assert "[-]nats failed: not connected: the process is starting" in answer.body
        assert (await ask(at, "/livez")).status == 200


async def test_metrics_are_a_page_for_prometheus_in_the_format_that_it_asks_for(
    vitals: Vitals,
) -> None:
    async with serving(HERE, vitals) as at:
        text = await ask(at, "/metrics")
        assert (text.status, text.headers["content-type"][:25]) == (
            200,
            "text/plain; version=0.0.4",
        )
        assert (
            '\ncontroller_runtime_max_concurrent_reconciles{controller="lamps"} 4.0\n' in text.body
        )
        accept = "Accept: application/openmetrics-text; version=1.0.0\r\n"
        open_metrics = await ask(at, "/metrics", headers=accept)
        assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
        assert open_metrics.body.endswith("# EOF\n")


async def test_what_is_not_there_cannot_be_asked_and_nothing_can_be_changed(vitals: Vitals) -> None:
    async with serving(HERE, vitals) as at:
        lost = await ask(at, "/")
        assert (lost.status, "/metrics" in lost.body) == (404, True)
        posted = await ask(at, "/livez", "POST", "Content-Length: 1000000\r\n")
        assert (posted.status, posted.headers["allow"]) == (405, "get, head")
        head = await ask(at, "/readyz", "HEAD")
        assert (head.status, head.body) == (200, "")


async def test_a_connection_is_for_one_request(vitals: Vitals) -> None:
    async with serving(HERE, vitals) as at:
        twice = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 2
        assert (await exchange(at, twice)).count(b"HTTP/1.1 200") == 1


async def test_what_makes_no_sense_is_refused_and_no_news(
    vitals: Vitals, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(HERE, vitals) as at:
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            for nonsense in (
                b"\x16\x03\x01\x02\n\n",
                b"GET\r\n\r\n",
                b"GET / HTTP/1.1\r\n:\r\n\r\n",
            ):
                assert (await exchange(at, nonsense)).startswith(b"HTTP/1.0 400")
            huge = b"GET /livez HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"
            assert b" 200 " not in await exchange(at, huge)
            assert (await ask(at, "/livez")).status == 200
        assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_a_failure_on_the_way_to_an_answer_is_told_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(HERE, Broken()) as at:
        answer = await ask(at, "/livez")
        assert (answer.status, answer.body) == (500, "internal error\n")
    assert "cannot answer request path=/livez" in caplog.text
    assert "broken on purpose" in caplog.text


async def test_there_are_a_few_connections_at_a_time_and_further_ones_are_closed_at_once(
    vitals: Vitals,
) -> None:
    async with serving(HERE, vitals, patience_s=3600) as at, AsyncExitStack() as stack:
        waiting = [await stack.enter_async_context(idle(at)) for _ in range(CONNECTIONS_MAX)]
        async with idle(at) as refused:
            assert await refused.read() == b""
        assert not any(reader.at_eof() for reader in waiting)
        await stack.aclose()

        async def is_served() -> bool:
            return (await exchange(at, b"GET /livez HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.0 200")

        await eventually(is_served)


async def test_who_says_nothing_or_does_not_come_to_an_end_is_cut_off(vitals: Vitals) -> None:
    async with serving(HERE, vitals, connection_s=0.1) as at:
        for begun in (b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost:"):
            assert await exchange(at, begun) == b""
        assert (await ask(at, "/livez")).status == 200


async def test_where_all_connections_are_slow_the_oldest_makes_room(vitals: Vitals) -> None:
    async with serving(HERE, vitals, patience_s=0) as at, AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(idle(at)) for _ in range(CONNECTIONS_MAX)]
        assert (await ask(at, "/livez")).status == 200
        assert await slow[0].read() == b""
        assert not slow[-1].at_eof()


async def test_a_thousand_at_once_are_answered_or_refused_and_syncs_go_on() -> None:
    operator, vitals, stores = Operator([Lamps()], nats=(found := MemoryStores())), Vitals(), found
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    lamps = stores.store(Lamps.lamps.kind)
    with vitals.of(Wire(), operator.runtimes):
        async with serving(HERE, vitals) as at:
            request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
            asking = [asyncio.create_task(exchange(at, request)) for _ in range(1000)]
            for number in range(200):
                await lamps.create(f"lamp-{number}", b"{}")
                await asyncio.sleep(0)
            answers = await asyncio.gather(*asking)
            assert {answer[9:12] for answer in answers} <= {b"200", b""}
            assert sum(answer[9:12] == b"200" for answer in answers) >= CONNECTIONS_MAX // 2
            page = (await ask(at, "/metrics")).body
    assert 'controller_runtime_reconcile_total{controller="lamps",result="success"} 200.0' in page
    operator.stop()
    await task


class Slow(Vitals):
    """Is asked for metrics, and counts that."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        self.asked += 1
        await asyncio.sleep(0.05)
        return await super().metrics(accept)


async def test_those_who_ask_for_metrics_at_once_share_a_page() -> None:
    vitals = Slow()
    async with serving(HERE, vitals) as at:
        answers = await asyncio.gather(*(ask(at, "/metrics") for _ in range(40)))
        assert {answer.status for answer in answers} == {200}
        assert vitals.asked < 20


async def test_who_never_reads_is_cut_off(vitals: Vitals) -> None:
    class Large(Vitals):
        async def metrics(self, accept: str) -> tuple[bytes, str]:
            return b"x" * 50_000_000, "text/plain"

    async with serving(HERE, Large(), connection_s=0.2) as at:
        reader, writer = await asyncio.open_connection(at.host, at.port, limit=1024)
        try:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            await writer.drain()

            async def is_cut() -> bool:
                with suppress(ConnectionError):
                    writer.write(b"x")
                    await writer.drain()
                return reader.exception() is not None or writer.transport.is_closing()

            await eventually(is_cut)
        finally:
            writer.close()
        assert (await ask(at, "/livez")).status == 200


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"X-Y: z\r\n" * 200_000 + b"\r\n",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 1_000_000,
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
    ],
    ids=["line", "headers", "body", "chunks"],
)
async def test_what_is_too_much_is_not_taken_in(vitals: Vitals, request_line: bytes) -> None:
    async with serving(HERE, vitals, connection_s=0.5) as at:
        with suppress(ConnectionError):
            assert b" 200 " not in await exchange(at, request_line)
        assert (await ask(at, "/livez")).status == 200


async def test_an_end_waits_for_nobody_who_is_silent_or_late() -> None:
    vitals = Stuck()
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
        async with serving(HERE, vitals, connection_s=3600) as at:
            silent = await stack.enter_async_context(idle(at))
            late = asyncio.create_task(exchange(at, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
            await vitals.asked.wait()
        assert await silent.read() == b""
        assert b"200 OK" not in await late
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection(at.host, at.port)


async def test_an_address_that_cannot_be_had_is_named() -> None:
    async with serving(HERE, Vitals()) as at:
        with pytest.raises(
            UsageError, match=f"cannot listen on {at}: address already in use; choose another"
        ):
            async with serving(at, Vitals()):
                pass
    with pytest.raises(UsageError, match=r"cannot listen on no\.such\.host\.invalid:80: "):
        async with serving(Address("no.such.host.invalid", 80), Vitals()):
            pass
