"""The HTTP server for probes and metrics, and its limits."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple

import pytest

from natsctl import Controller, Object, Operator, kv, primary
from natsctl.daemon.http import CONNECTIONS_MAX, Vitals, serving
from natsctl.daemon.metrics import Family
from natsctl.daemon.probe import ANSWER_MAX, probe
from natsctl.daemon.settings.settings import Address
from natsctl.errors import NoDaemonError, UsageError
from natsctl.jetstream.connection import Connection, ConnectionState
from natsctl.jetstream.options import NatsOptions
from natsctl.testing import MemoryStores
from tests.support.eventually import eventually
from tests.support.servers.ports import free_port

HERE = Address("127.0.0.1", 0)


class Lamp(Object, frozen=True):
    pass


class Lamps(Controller):
    lamps = primary(kv(Lamp, bucket="lamps"))

    async def sync_handler(self, key: str) -> float | None:
        return None


class EstablishedLink(Connection):
    """An established connection to NATS."""

    def __init__(self) -> None:
        super().__init__(NatsOptions())

    def state(self) -> ConnectionState:
        return ConnectionState(
            connected=True, server="hub", losses=0, since_s=0, errors=0, last_error=None
        )


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


async def exchange(address: Address, sent: bytes) -> bytes:
    """Send bytes, and return all received bytes until the connection is closed."""
    async with asyncio.timeout(120):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(sent)
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.transport.abort()


async def is_served(address: Address) -> bool:
    """Return whether the server answers a request, which it may do too late on a slow machine."""
    return (await exchange(address, b"GET /livez HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.0 200")


async def fetch(address: Address, target: str, method: str = "GET", headers: str = "") -> Response:
    """Send a request with keep-alive, and return the response."""
    request = (
        f"{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: keep-alive\r\n{headers}\r\n"
    )
    head, _, body = (await exchange(address, request.encode())).decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    response_headers = dict(line.lower().split(": ", 1) for line in lines)
    return Response(int(status.split()[1]), response_headers, body)


@asynccontextmanager
async def idle(address: Address) -> AsyncIterator[asyncio.StreamReader]:
    """Connect without sending a request."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield reader
    finally:
        writer.transport.abort()


@pytest.fixture
async def vitals() -> AsyncIterator[Vitals]:
    """Return the vitals of a process with one controller."""
    operator, vitals = Operator([Lamps()], nats=MemoryStores()), Vitals()
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    with vitals.of(EstablishedLink(), operator.runtimes):
        yield vitals
    operator.stop()
    await task


async def test_a_healthy_process_passes_its_probes(vitals: Vitals) -> None:
    with serving(HERE, vitals) as address:
        for path in ("/livez", "/readyz"):
            response = await fetch(address, path)
            assert (response.status, response.body) == (200, "ok")
            assert response.headers["content-type"].startswith("text/plain")
        verbose = await fetch(address, "/readyz?verbose")
        assert verbose.body.splitlines() == [
            "[+]nats ok",
            "[+]controller/lamps ok",
            "[+]cache/lamps/lamps ok",
            "readyz check passed",
        ]


async def test_a_process_that_is_not_ready_returns_503_with_the_reason_and_is_live() -> None:
    with serving(HERE, Vitals()) as address:
        response = await fetch(address, "/readyz")
        assert response.status == 503
        assert response.body.endswith("readyz check failed\n")
        assert "[-]nats failed: not connected: the process is starting" in response.body
        assert (await fetch(address, "/livez")).status == 200


async def test_metrics_are_served_in_the_requested_prometheus_format(vitals: Vitals) -> None:
    with serving(HERE, vitals) as address:
        text = await fetch(address, "/metrics")
        assert text.status == 200
        assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
        workers = 'controller_runtime_max_concurrent_reconciles{controller="lamps"} 4.0'
        assert f"\n{workers}\n" in text.body
        accept = "Accept: application/openmetrics-text; version=1.0.0\r\n"
        open_metrics = await fetch(address, "/metrics", headers=accept)
        assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
        assert open_metrics.body.endswith("# EOF\n")


async def test_unknown_paths_return_404_and_other_methods_405(vitals: Vitals) -> None:
    with serving(HERE, vitals) as address:
        not_found = await fetch(address, "/")
        assert (not_found.status, "/metrics" in not_found.body) == (404, True)
        posted = await fetch(address, "/livez", "POST", "Content-Length: 1000000\r\n")
        assert (posted.status, posted.headers["allow"]) == (405, "get, head")
        head = await fetch(address, "/readyz", "HEAD")
        assert (head.status, head.body) == (200, "")


async def test_malformed_requests_are_refused_without_a_log_line(
    vitals: Vitals, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(HERE, vitals) as address:
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            for nonsense in (
                b"\x16\x03\x01\x02\n\n",
                b"GET\r\n\r\n",
                b"GET /livez HTTP/1.1 x\r\n\r\n",
            ):
                assert (await exchange(address, nonsense)).startswith(b"HTTP/1.0 400")
            huge = b"GET /livez HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"
            assert b" 200 " not in await exchange(address, huge)
            assert (await fetch(address, "/livez")).status == 200
        assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


@asynccontextmanager
async def full(address: Address) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Open as many connections as the server takes, without sending a request."""
    async with AsyncExitStack() as stack:
        opening = (stack.enter_async_context(idle(address)) for _ in range(CONNECTIONS_MAX))
        yield [await one for one in opening]


async def test_connections_above_the_limit_are_closed_at_once(vitals: Vitals) -> None:
    with serving(HERE, vitals, connection_s=3600, patience_s=3600) as address:
        async with full(address) as waiting:
            async with idle(address) as refused:
                assert await refused.read() == b""
            assert not any(reader.at_eof() for reader in waiting)
        await eventually(lambda: is_served(address))


async def test_the_oldest_slow_connection_is_closed_for_a_new_one(vitals: Vitals) -> None:
    with serving(HERE, vitals, connection_s=3600, patience_s=0) as address:
        async with full(address) as slow:
            assert (await fetch(address, "/livez")).status == 200
            assert await slow[0].read() == b""
            assert not slow[-1].at_eof()


async def test_a_client_that_sends_no_complete_request_is_disconnected(vitals: Vitals) -> None:
    with serving(HERE, vitals, connection_s=0.1) as address:
        for begun in (b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost:"):
            assert await exchange(address, begun) == b""
        await eventually(lambda: is_served(address))


async def test_many_concurrent_requests_do_not_stop_syncs() -> None:
    stores, vitals = MemoryStores(), Vitals()
    operator = Operator([Lamps()], nats=stores)
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    lamps = stores.store(Lamps.lamps.kind)
    with vitals.of(EstablishedLink(), operator.runtimes), serving(HERE, vitals) as address:
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        exchanges = (exchange(address, request) for _ in range(4 * CONNECTIONS_MAX))
        pending = [asyncio.create_task(one) for one in exchanges]
        for number in range(100):
            await lamps.create(f"lamp-{number}", b"{}")
            await asyncio.sleep(0)
        responses = await asyncio.gather(*pending)
        assert {response[9:12] for response in responses} <= {b"200", b""}
        assert sum(response[9:12] == b"200" for response in responses) >= CONNECTIONS_MAX // 2
        line = 'controller_runtime_reconcile_total{controller="lamps",result="success"} 100.0'

        async def all_are_synced() -> bool:
            return line in (await fetch(address, "/metrics")).body

        await eventually(all_are_synced)
    operator.stop()
    await task


async def test_a_client_that_never_reads_is_disconnected(vitals: Vitals) -> None:
    class Large(Vitals):
        async def metrics(self) -> list[Family]:
            return [Family("large", "x" * 50_000_000, "gauge")]

    with serving(HERE, Large(), connection_s=0.2) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1024)
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
            writer.transport.abort()
        await eventually(lambda: is_served(address))


async def test_oversized_requests_are_refused(vitals: Vitals) -> None:
    post = b"POST /livez HTTP/1.1\r\nHost: x\r\n"
    for request in (
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"X-Y: z\r\n" * 200_000 + b"\r\n",
        post + b"Content-Length: 1000000000\r\n\r\n" + b"x" * 1_000_000,
        post + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n",
    ):
        with serving(HERE, vitals, connection_s=0.5) as address:
            with suppress(ConnectionError):
                assert b" 200 " not in await exchange(address, request)
            await eventually(lambda address=address: is_served(address))  # type: ignore[misc]


async def test_the_error_names_an_address_that_cannot_be_used() -> None:
    with (
        serving(HERE, Vitals()) as address,
        pytest.raises(
            UsageError, match=f"cannot listen on {address}: address already in use; choose another"
        ),
        serving(address, Vitals()),
    ):
        pass
    with (
        pytest.raises(UsageError, match=r"cannot listen on no\.such\.host\.invalid:80: "),
        serving(Address("no.such.host.invalid", 80), Vitals()),
    ):
        pass


@asynccontextmanager
async def answering(response: bytes, *, open_end: bool = False) -> AsyncIterator[Address]:
    """Run a server that sends this response. With *open_end*, the connection stays open."""

    tasks: list[asyncio.Task[None] | None] = []

    async def result(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(response)
            if open_end:
                await reader.read()  # until the client disconnects
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(result, "127.0.0.1", 0) as server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
        await asyncio.gather(*filter(None, tasks))


async def test_a_probe_reaches_every_listen_address() -> None:
    for host in ("", "0.0.0.0", "127.0.0.1", "localhost"):
        with serving(Address(host, free_port()), Vitals()) as address:
            alive = await probe(address, "/livez?verbose")
            passed = "[+]ping ok\n[+]nats ok\nlivez check passed\n"
            assert (alive.passed, alive.text) == (True, passed)
            ready = await probe(address, "/readyz")
            assert not ready.passed
            assert "[-]nats failed: not connected: the process is starting" in ready.text


async def test_a_probe_without_an_answer_is_an_error() -> None:
    with pytest.raises(NoDaemonError, match=r"cannot connect to :\d+: .*--listen :\d+"):
        await probe(Address("", free_port()), "/livez")
    async with answering(b"", open_end=True) as address:
        with pytest.raises(NoDaemonError, match=r"does not respond within 0\.05 s"):
            await probe(address, "/livez", answer_s=0.05)
    for response in (b"", b"INFO {}\r\n", b"HTTP/1.0 fine\r\n\r\n", b"\xff\xfe"):
        async with answering(response) as address:
            with pytest.raises(NoDaemonError, match="does not speak HTTP"):
                await probe(address, "/livez")


async def test_a_probe_reads_a_response_up_to_its_limit() -> None:
    async with answering(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * ANSWER_MAX, open_end=True) as address:
        result = await probe(address, "/livez")
        assert result.passed
        assert set(result.text) == {"x"}
