"""A probe returns the health of a daemon, or raises an error within a time limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from natsctl.daemon.http import ANSWER_MAX, Vitals, probe, serving
from natsctl.daemon.settings.settings import Address
from natsctl.errors import NoDaemonError
from tests.support.servers.ports import free_port


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


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1", "localhost"])
async def test_a_probe_reaches_every_listen_address(host: str) -> None:
    with serving(Address(host, free_port()), Vitals()) as address:
        alive = await probe(address, "/livez?verbose")
        assert (alive.passed, alive.text) == (True, "[+]ping ok\n[+]nats ok\nlivez check passed\n")
        ready = await probe(address, "/readyz")
        assert not ready.passed
        assert "[-]nats failed: not connected: the process is starting" in ready.text


async def test_the_error_without_a_daemon_suggests_the_listen_option() -> None:
    with pytest.raises(NoDaemonError, match=r"cannot connect to :\d+: .*--listen :\d+"):
        await probe(Address("", free_port()), "/livez")


async def test_a_probe_stops_waiting_after_its_timeout() -> None:
    async with answering(b"", open_end=True) as address:
        with pytest.raises(NoDaemonError, match=r"does not respond within 0\.05 s"):
            await probe(address, "/livez", answer_s=0.05)


async def test_a_probe_reads_a_response_up_to_its_limit() -> None:
    async with answering(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * ANSWER_MAX, open_end=True) as address:
        result = await probe(address, "/livez")
        assert result.passed
        assert set(result.text) == {"x"}


@pytest.mark.parametrize("response", [b"", b"INFO {}\r\n", b"HTTP/1.0 fine\r\n\r\n", b"\xff\xfe"])
async def test_a_response_that_is_not_http_is_an_error(response: bytes) -> None:
    async with answering(response) as address:
        with pytest.raises(NoDaemonError, match="does not speak HTTP"):
            await probe(address, "/livez")
