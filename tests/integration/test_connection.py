"""A connection comes back by itself, tells of every loss, and never sends what has failed."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from natsctl.errors import ConnectError, StoreError, StoreTimeoutError, UsageError
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions
from tests.support.clients.stream_requests import STREAM, holds, messages, put, works
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsCluster, NatsServer
from tests.support.servers.tcp_proxy import CutProxy

GREETING = b'INFO {"version": "2.12.0", "max_payload": 1048576, "headers": true}\r\n'


def sockets() -> int:
    """Count this process's open sockets."""
    count = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(fd.readlink()).startswith("socket:")
    return count


@asynccontextmanager
async def scripted(
    play: Callable[[asyncio.StreamWriter], None], *, pongs: bool = True
) -> AsyncIterator[str]:
    """A server that lets a client in and plays a part whenever it says something."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        connected = False
        while line := await reader.readline():
            if connected:
                play(writer)
            if line.startswith(b"PING") and (pongs or not connected):
                connected = True
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_where_no_server_is_the_error_names_each_and_says_what_to_do() -> None:
    with pytest.raises(ConnectError) as caught:
        await Connection.open("nats://127.0.0.1:1,nats://ann:s3cret@localhost:2")
    assert "nats://127.0.0.1:1: connection refused; is a NATS server" in str(caught.value)
    assert "nats://localhost:2: " in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_a_server_that_does_not_answer_fails_the_connection_in_time(
    cut_proxy: CutProxy,
) -> None:
    cut_proxy.freeze()
    with pytest.raises(ConnectError, match="answer"):
        await Connection.open(NatsOptions(servers=(cut_proxy.url,), connect_timeout_s=0.2))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nats://", "nats://host:port", "::"])
async def test_a_url_that_is_none_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="not the URL of a NATS server"):
        await Connection.open(url)


async def test_who_may_wait_starts_before_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = NatsServer(tmp_path)
    opening = asyncio.create_task(Connection.open(server.url, wait=True))
    await eventually(lambda: "no connection to NATS yet" in caplog.text)
    async with server:
        connection = await opening
        assert await works(connection)
        assert connection.losses == 0
        await connection.close()


async def test_waiting_can_be_cancelled() -> None:
    opening = asyncio.create_task(Connection.open("nats://127.0.0.1:1", wait=True))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_who_waits_is_still_told_of_wrong_credentials(tmp_path: Path) -> None:
    config = "authorization { user: ann, password: x }"
    async with NatsServer(tmp_path, config=config) as server:
        with pytest.raises(ConnectError, match="refuses"):
            await Connection.open(server.url, wait=True)


async def test_of_several_servers_any_will_do(nats_server: NatsServer) -> None:
    async with connect(f"nats://127.0.0.1:1,{nats_server.url}") as connection:
        assert connection.state().server == nats_server.url


async def test_a_killed_server_is_reconnected_when_it_is_back(nats_server: NatsServer) -> None:
    async with connect(nats_server.url) as connection:
        assert connection.connected
        nats_server.kill()
        await eventually(lambda: not connection.connected)
        await nats_server.start()
        await connection.wait_connected()
        assert await works(connection)
        assert connection.losses == 1


async def test_every_loss_and_every_return_is_told(nats_server: NatsServer) -> None:
    told: list[str] = []
    async with connect(nats_server.url) as connection:
        with connection.on_lost(lambda error: told.append(str(error))):
            for _ in range(2):
                nats_server.kill()
                await eventually(lambda: not connection.connected)
                await nats_server.start()
                await connection.wait_connected()
        nats_server.kill()
        await eventually(lambda: connection.losses == 3)
    assert ["is lost" in message for message in told] == [True, False, True, False]


async def test_a_callback_that_raises_harms_no_other(nats_server: NatsServer) -> None:
    told: list[StoreError] = []

    def fail(error: StoreError) -> None:
        raise RuntimeError(error)

    async with connect(nats_server.url) as connection:
        with connection.on_lost(fail), connection.on_lost(told.append):
            nats_server.kill()
            await eventually(lambda: told)
        await nats_server.start()
        await connection.wait_connected()


async def test_closing_is_told_too(nats_server: NatsServer) -> None:
    told: list[StoreError] = []
    connection = await Connection.open(nats_server.url)
    with connection.on_lost(told.append):
        await connection.close()
    assert "it was closed" in str(told[0])
    assert connection.losses == 0


async def test_a_request_without_a_connection_fails_at_once_and_is_never_sent(
    nats_server: NatsServer,
) -> None:
    async with connect(nats_server.url) as connection:
        await connection.api("STREAM.CREATE.KV_things", STREAM)
        await put(connection, "before")
        nats_server.kill()
        await eventually(lambda: not connection.connected)
        for _ in range(3):
            with pytest.raises(StoreError, match="not connected"):
                await put(connection, "during")
        with pytest.raises(StoreError, match="not connected"):
            _ = connection.client
        await nats_server.start()
        await connection.wait_connected()
        await put(connection, "after")
        assert await messages(connection) == 2


async def test_a_request_under_way_fails_when_the_connection_is_lost(
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


async def test_what_a_frozen_server_has_not_read_is_not_sent_to_the_next(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    """More than every buffer on the way holds is under way when the connection breaks."""
    async with connect(NatsOptions(servers=(cut_proxy.url,), silence_s=0.6)) as connection:
        await connection.api("STREAM.CREATE.KV_things", STREAM)
        cut_proxy.freeze()
        big = bytes(512 * 1024)
        puts = [asyncio.create_task(put(connection, f"k{n}", big)) for n in range(64)]
        await eventually(lambda: connection.losses == 1)
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert all(isinstance(outcome, StoreTimeoutError) for outcome in outcomes)
        cut_proxy.cut()
        cut_proxy.thaw()
        await cut_proxy.heal()
        await connection.wait_connected()
        assert await put(connection, "after") == 1


async def test_a_stopped_server_is_noticed(nats_server: NatsServer) -> None:
    told: list[StoreError] = []
    async with connect(NatsOptions(servers=(nats_server.url,), silence_s=0.6)) as connection:
        with connection.on_lost(told.append):
            nats_server.pause()
            await eventually(lambda: told)
            assert "no longer answers" in str(told[0])
            nats_server.resume()
        await eventually(lambda: works(connection))  # so little silence may be met again


async def test_a_cut_network_is_noticed_and_its_return_too(cut_proxy: CutProxy) -> None:
    async with connect(cut_proxy.url) as connection:
        cut_proxy.cut()
        await eventually(lambda: not connection.connected)
        await cut_proxy.heal()
        await connection.wait_connected()
        assert await works(connection)


async def test_messages_are_a_sign_of_life_as_good_as_pongs() -> None:
    """Pongs queue behind what the server sends: a busy connection is not given up."""
    spoken: list[asyncio.StreamWriter] = []

    def send_no_pong(writer: asyncio.StreamWriter) -> None:
        spoken.append(writer)
        if len(spoken) < 12:
            writer.write(b"MSG subject 1 2\r\nhi\r\n")

    async with (
        scripted(send_no_pong, pongs=False) as url,
        connect(NatsOptions(servers=(url,), silence_s=0.3)) as connection,
    ):
        await eventually(lambda: len(spoken) >= 12)
        assert connection.losses == 0
        await eventually(lambda: connection.losses == 1)


async def test_in_a_cluster_another_node_takes_over(nats_cluster: NatsCluster) -> None:
    first = nats_cluster.nodes[0]
    async with connect(first.url) as connection:
        first.kill()
        await eventually(lambda: connection.losses == 1)
        await connection.wait_connected()
        assert connection.state().server in {node.url for node in nats_cluster.nodes[1:]}


async def test_a_connection_whose_reading_died_is_replaced() -> None:
    visits: list[asyncio.StreamWriter] = []

    def confuse_once(writer: asyncio.StreamWriter) -> None:
        if not visits:
            writer.write(b"INFO {no json}\r\n")
        visits.append(writer)

    async with (
        scripted(confuse_once) as url,
        connect(NatsOptions(servers=(url,), silence_s=3600)) as connection,
    ):
        await eventually(lambda: len(visits) > 1)
        await connection.wait_connected()
        assert connection.losses == 1


async def test_an_error_of_the_server_that_ends_nats_py_does_not_end_us() -> None:
    visits: list[asyncio.StreamWriter] = []

    def refuse_once(writer: asyncio.StreamWriter) -> None:
        if not visits:
            writer.write(b"-ERR 'Maximum Connections Exceeded'\r\n")
        visits.append(writer)

    told: list[StoreError] = []
    async with scripted(refuse_once) as url, connect(url) as connection:
        with connection.on_lost(told.append):
            await eventually(lambda: len(visits) > 1)
        await connection.wait_connected()
    assert "maximum connections exceeded" in str(told[0])


async def test_a_cancelled_flush_does_no_harm(nats_server: NatsServer) -> None:
    async with connect(nats_server.url) as connection:
        flushing = asyncio.create_task(connection.client.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        for _ in range(3):
            await connection.client.flush()
        assert connection.losses == 0


async def test_errors_in_the_background_are_counted_and_said_once(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("a broken handler")

    async with connect(nats_server.url) as connection:
        await connection.client.subscribe("here", cb=fail)
        for _ in range(5):
            await connection.client.publish("here")
        await eventually(lambda: connection.state().errors == 5)
        assert connection.state().last_error == "a broken handler"
        assert await works(connection)
    assert caplog.text.count("a broken handler") == 1


async def test_closing_leaves_nothing_running(
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


async def test_closing_is_possible_while_there_is_no_server(nats_server: NatsServer) -> None:
    before = asyncio.all_tasks()
    async with connect(nats_server.url) as connection:
        nats_server.kill()
        await eventually(lambda: not connection.connected)
    await eventually(lambda: asyncio.all_tasks() == before)


async def test_closing_does_not_wait_for_a_stopped_server(nats_server: NatsServer) -> None:
    before, open_before = asyncio.all_tasks(), sockets()
    async with connect(nats_server.url) as connection:
        nats_server.pause()
        for _ in range(100):
            await connection.client.publish("nowhere", bytes(100_000))
    await eventually(lambda: asyncio.all_tasks() == before)
    await eventually(lambda: sockets() == open_before)


async def test_a_connection_that_breaks_while_it_sends_leaves_nothing_running(
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
    await eventually(lambda: sockets() < open_before)  # the proxy listens no more


async def test_closing_sends_what_was_published(nats_server: NatsServer) -> None:
    async with connect(nats_server.url) as connection:
        await connection.api("STREAM.CREATE.KV_things", STREAM)
        for number in range(1000):
            await connection.client.publish(f"$KV.things.{number}", b"x")
    async with connect(nats_server.url) as connection:
        await eventually(lambda: holds(connection, 1000))


async def test_a_closed_connection_says_so(nats_server: NatsServer) -> None:
    connection = await Connection.open(nats_server.url)
    await connection.close()
    await connection.close()
    assert not connection.connected
    with pytest.raises(StoreError, match="was closed"):
        await connection.api("INFO")
    with pytest.raises(StoreError, match="was closed"):
        await connection.wait_connected()


async def test_its_state_can_be_shown(nats_server: NatsServer) -> None:
    async with connect(nats_server.url) as connection:
        state = connection.state()
        assert (state.connected, state.server, state.losses) == (True, nats_server.url, 0)
        assert state.last_error is None
        assert state.since_s >= 0
        nats_server.kill()
        await eventually(lambda: connection.losses)
        state = connection.state()
        assert not state.connected
        assert state.last_error
