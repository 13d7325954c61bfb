"""Who asks how a daemon is gets an answer, or is told why not, within a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from natsctl.daemon.http.client import ANSWER_MAX, probe
from natsctl.daemon.http.server import serving
from natsctl.daemon.http.vitals import Vitals
from natsctl.daemon.settings.address import Address
from natsctl.errors import NoDaemonError
from tests.support.servers.ports import free_port


@asynccontextmanager
async def answering(said: bytes, *, open_end: bool = False) -> AsyncIterator[Address]:
    """Whatever is asked here, this is said; *open_end*: and the connection is kept."""

    asked: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(asyncio.current_task())
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            if open_end:
                await reader.read()  # until who asks has gone
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
        await asyncio.gather(*filter(None, asked))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1", "localhost"])
async def test_whoever_listens_everywhere_or_here_is_reached_here(host: str) -> None:
    async with serving(Address(host, free_port()), Vitals()) as address:
        alive = await probe(address, "/livez?verbose")
        assert (alive.passed, alive.text) == (True, "[+]ping ok\n[+]nats ok\nlivez check passed\n")
        ready = await probe(address, "/readyz")
        assert not ready.passed
        assert "[-]nats failed: not connected: the process is starting" in ready.text


async def test_where_nobody_listens_it_is_said_what_would_help() -> None:
    with pytest.raises(NoDaemonError, match=r"cannot connect to :\d+: .*--listen :\d+"):
        await probe(Address("", free_port()), "/livez")


async def test_who_does_not_answer_is_waited_for_no_longer_than_that() -> None:
    async with answering(b"", open_end=True) as address:
        with pytest.raises(NoDaemonError, match=r"does not respond within 0\.05 s"):
            await probe(address, "/livez", answer_s=0.05)


async def test_who_never_ends_is_not_listened_to_for_ever() -> None:
    async with answering(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * ANSWER_MAX, open_end=True) as address:
        answer = await probe(address, "/livez")
        assert answer.passed
        assert set(answer.text) == {"x"}


@pytest.mark.parametrize("said", [b"", b"INFO {}\r\n", b"HTTP/1.0 fine\r\n\r\n", b"\xff\xfe"])
async def test_who_speaks_something_else_is_not_taken_for_a_daemon(said: bytes) -> None:
    async with answering(said) as address:
        with pytest.raises(NoDaemonError, match="does not speak HTTP"):
            await probe(address, "/livez")
