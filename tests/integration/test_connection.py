"""A connection reconnects, reports every loss, and never sends a failed write again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from natsctl import NatsOptions, kv
from natsctl.errors import ConnectError, StoreError, StoreTimeoutError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.store import BucketStore
from tests.support.clients.nats import connect
from tests.support.clients.stream_requests import STREAM, messages, put, works
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port
from tests.support.servers.tcp_proxy import CutProxy

GREETING = b'INFO {"version": "2.12.0", "max_payload": 1048576, "headers": true}\r\n'


def sockets() -> int:
    """Return the number of open sockets of this process."""
    count = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(fd.readlink()).startswith("socket:")
    return count


@asynccontextmanager
async def scripted(
    respond: Callable[[asyncio.StreamWriter], None], *, pongs: bool = True
) -> AsyncIterator[str]:
    """Run a server that accepts clients and calls *respond* for each line that a client sends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected = False
        try:
            writer.write(GREETING)
            while line := await reader.readline():
                if connected:
                    respond(writer)
                if line.startswith(b"PING") and (pongs or not connected):
                    connected = True
                    writer.write(b"PONG\r\n")
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def attempt(options: NatsOptions | str, *, wait: bool = False) -> None:
    async with connect(options, wait=wait):
        pass


async def test_a_silent_server_fails_the_connection_within_the_timeout(
    cut_proxy: CutProxy,
) -> None:
    cut_proxy.freeze()
    with pytest.raises(ConnectError, match="answer"):
        await attempt(NatsOptions(servers=(cut_proxy.url,), connect_timeout_s=0.2))


async def test_open_with_wait_connects_to_a_server_that_starts_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = NatsServer(tmp_path)

    async def work() -> None:
        async with connect(server.url, wait=True) as connection:
            assert await works(connection)
            assert connection.losses == 0

    working = asyncio.create_task(work())
    await eventually(lambda: "no connection to NATS yet" in caplog.text)
    async with server:
        await working


@pytest.mark.filterwarnings("ignore:parameter 'timeout':DeprecationWarning")  # nats-py's argument
async def test_a_connection_over_web_sockets_works(tmp_path: Path) -> None:
    port = free_port()
    config = f"websocket {{ listen: 127.0.0.1:{port}, no_tls: true }}"
    server = NatsServer(tmp_path / "nats", config=config)
    async with server, connect(f"ws://127.0.0.1:{port}") as connection:
        assert await works(connection)


async def test_a_bounded_wait_for_the_connection_ends_with_an_error_that_names_the_server(
    nats_server: NatsServer,
) -> None:
    async with connect(nats_server.url) as connection:
        connection.options = replace(connection.options, connect_timeout_s=0.2)
        bucket = Bucket(connection, "shops")
        await bucket.ensure(kv(bytes, bucket="shops"))
        nats_server.kill()
        await eventually(lambda: not connection.connected)
        errors = await asyncio.gather(
            connection.wait_connected(forever=False),
            BucketStore(bucket).listing(),  # what a command reads once
            return_exceptions=True,
        )
    for error in errors:
        assert isinstance(error, StoreError)
        assert f"not connected to NATS at {nats_server.url}: " in str(error)


async def test_on_lost_is_called_for_every_loss(nats_server: NatsServer) -> None:
    errors: list[str] = []
    async with connect(nats_server.url) as connection:
        with connection.on_lost(lambda error: errors.append(str(error))):
            for _ in range(2):
                nats_server.kill()
                await eventually(lambda: not connection.connected)
                await nats_server.start()
                await connection.wait_connected()
        nats_server.kill()
        await eventually(lambda: connection.losses == 3)
    assert ["is lost" in message for message in errors] == [True, False, True, False]


async def test_a_request_without_a_connection_fails_at_once_and_is_never_sent(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection returns when the server does."""
    async with connect(nats_server.url) as connection:
        await connection.api("STREAM.CREATE.KV_things", STREAM)
        await put(connection, "before")
        assert connection.connected
        nats_server.kill()
        await eventually(lambda: not connection.connected)
        assert caplog.text.count("lost the connection to NATS") == 1
        for _ in range(3):
            with pytest.raises(StoreError, match="not connected"):
                await put(connection, "during")
        with pytest.raises(StoreError, match="not connected"):
            _ = connection.client
        await nats_server.start()
        await connection.wait_connected()
        await put(connection, "after")
        assert await messages(connection) == 2
        assert connection.losses == 1


async def test_a_pending_request_fails_when_the_connection_is_lost(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    options = NatsOptions(servers=(cut_proxy.url,), request_timeout_s=3600)
    async with connect(options) as connection:
        await connection.api("STREAM.CREATE.KV_things", STREAM)
        cut_proxy.freeze()
        asking = asyncio.create_task(put(connection, "lost"))
        await eventually(lambda: connection.client.stats["out_msgs"] >= 2)
        cut_proxy.cut()
        with pytest.raises(StoreTimeoutError, match="whether it took effect is unknown"):
            await asking
        cut_proxy.thaw()
        await cut_proxy.heal()
        await connection.wait_connected()
        await put(connection, "found")
        assert await messages(connection) == 1


async def test_writes_that_a_frozen_server_did_not_read_are_not_sent_again(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    """The pending writes exceed all network buffers when the connection breaks."""
    async with connect(cut_proxy.url) as connection:
        await connection.api("STREAM.CREATE.KV_things", STREAM)
        before = connection.client.stats["out_msgs"]
        cut_proxy.freeze()
        big = bytes(512 * 1024)
        puts = [asyncio.create_task(put(connection, f"k{n}", big)) for n in range(64)]
        await eventually(lambda: connection.client.stats["out_msgs"] == before + len(puts))
        cut_proxy.cut()
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert all(isinstance(outcome, StoreTimeoutError) for outcome in outcomes)
        assert connection.losses == 1
        cut_proxy.thaw()
        await cut_proxy.heal()
        await connection.wait_connected()
        assert await put(connection, "after") == 1


async def test_a_paused_server_is_detected(nats_server: NatsServer) -> None:
    errors: list[StoreError] = []
    async with connect(NatsOptions(servers=(nats_server.url,), silence_s=0.6)) as connection:
        with connection.on_lost(errors.append):
            nats_server.pause()
            await eventually(lambda: errors)
            assert "no longer answers" in str(errors[0])
            nats_server.resume()
        await eventually(lambda: works(connection))  # the short silence limit may be exceeded again


async def test_messages_keep_a_connection_alive_without_pongs() -> None:
    """A pong may queue behind messages, so a busy connection is not replaced."""
    writers: list[asyncio.StreamWriter] = []

    def send_no_pong(writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if len(writers) < 6:
            writer.write(b"MSG subject 1 2\r\nhi\r\n")

    async with (
        scripted(send_no_pong, pongs=False) as url,
        connect(NatsOptions(servers=(url,), silence_s=0.3)) as connection,
    ):
        await eventually(lambda: len(writers) >= 6)
        assert connection.losses == 0
        await eventually(lambda: connection.losses == 1)


async def test_a_connection_whose_reader_failed_is_replaced() -> None:
    writers: list[asyncio.StreamWriter] = []

    def confuse_once(writer: asyncio.StreamWriter) -> None:
        if not writers:
            writer.write(b"INFO {no json}\r\n")
        writers.append(writer)

    async with (
        scripted(confuse_once) as url,
        connect(NatsOptions(servers=(url,), silence_s=3600)) as connection,
    ):
        await eventually(lambda: len(writers) > 1)
        await connection.wait_connected()
        assert connection.losses == 1


async def test_close_leaves_no_task_running(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    before = asyncio.all_tasks()
    async with connect(nats_server.url) as connection:
        assert await works(connection)
        nats_server.kill()
        await eventually(lambda: not connection.connected)
        await nats_server.start()
        await connection.wait_connected()
    await eventually(lambda: asyncio.all_tasks() == before)
    assert not caplog.records


async def test_close_does_not_wait_for_a_paused_server(nats_server: NatsServer) -> None:
    before, open_before = asyncio.all_tasks(), sockets()
    async with connect(nats_server.url) as connection:
        nats_server.pause()
        for _ in range(100):
            await connection.client.publish("nowhere", bytes(100_000))
    await eventually(lambda: asyncio.all_tasks() == before)
    await eventually(lambda: sockets() == open_before)


async def test_a_connection_that_breaks_during_a_send_leaves_no_task_running(
    cut_proxy: CutProxy,
) -> None:
    before, open_before = asyncio.all_tasks(), sockets()
    async with connect(cut_proxy.url) as connection:
        cut_proxy.freeze()
        for _ in range(100):
            await connection.client.publish("nowhere", bytes(100_000))
        cut_proxy.cut()
        await eventually(lambda: not connection.connected)
    await eventually(lambda: asyncio.all_tasks() == before)
    await eventually(lambda: sockets() < open_before)  # the proxy no longer listens


async def test_connecting_can_be_cancelled_at_every_step(nats_server: NatsServer) -> None:
    async def stay_connected() -> None:
        async with connect(nats_server.url):
            await asyncio.Event().wait()

    for moment in range(40):
        task = asyncio.create_task(stay_connected())
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=30)
        assert done, f"a cancellation in moment {moment} was lost"
        assert task.cancelled()
