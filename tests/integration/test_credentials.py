"""A connection supports every NATS authentication method, and errors contain no secret."""

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from natsctl import NatsOptions
from natsctl.errors import ConnectError, StoreError, UsageError
from tests.support.clients.nats import connect
from tests.support.eventually import eventually
from tests.support.servers.nats_accounts import Identity, Operator
from tests.support.servers.nats_server import NatsServer

SECRET = "s3cret/p@ss"
PATIENT = "timeout: 60"  # the server waits so many seconds for a slow client
Serve = Callable[[str], Awaitable[NatsServer]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Return a function that starts a server with a configuration."""
    started: list[NatsServer] = []

    async def start(config: str) -> NatsServer:
        server = NatsServer(tmp_path / f"nats{len(started)}", config=config)
        started.append(server)
        await server.start()
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return str(file)


@pytest.fixture
def tls_config(authority: trustme.CA, ca_file: str, tmp_path: Path) -> str:
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(str(tmp_path / "server-key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "server-cert.pem"))
    return (
        f'cert_file: "{tmp_path}/server-cert.pem", key_file: "{tmp_path}/server-key.pem", '
        f'ca_file: "{ca_file}"'
    )


@pytest.fixture
def own_cert(authority: trustme.CA, tmp_path: Path) -> NatsOptions:
    certificate = authority.issue_cert("natsctl@example.com")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    return NatsOptions(tls_cert=cert, tls_key=key)


async def works(options: NatsOptions | str) -> bool:
    async with connect(options) as connection:
        return "limits" in await connection.api("INFO")


async def refusal(options: NatsOptions | str) -> str:
    with pytest.raises(ConnectError) as caught:
        await works(options)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__
    return str(caught.value)


async def test_a_user_connects_with_the_right_password_only(serve: Serve) -> None:
    server = await serve(f'authorization {{ user: ann, password: "{SECRET}", {PATIENT} }}')
    options = NatsOptions(servers=(server.url,), user="ann", password=SECRET)
    assert await works(options)
    wrong = NatsOptions(servers=(server.url,), user="bob", password=SECRET)
    assert f"{server.url}: the server refuses user 'bob' and its password" in await refusal(wrong)
    assert "without credentials; give it" in await refusal(server.url)


async def test_an_nkey_is_checked(serve: Serve, tmp_path: Path) -> None:
    files: list[Path] = []
    keys = [Identity.user(), Identity.user()]
    for number, key in enumerate(keys):
        files.append(tmp_path / f"user{number}.nk")
        files[-1].write_bytes(key.seed + b"\n")
    server = await serve(f"authorization {{ users: [ {{ nkey: {keys[0].public} }} ], {PATIENT} }}")
    assert await works(NatsOptions(servers=(server.url,), nkey=str(files[0])))
    wrong = NatsOptions(servers=(server.url,), nkey=str(files[1]))
    assert f"the server refuses the nkey in {files[1]}" in await refusal(wrong)


async def test_a_creds_file_is_checked(serve: Serve, tmp_path: Path) -> None:
    operator = Operator()
    server = await serve(operator.config())
    right = operator.creds(tmp_path / "right.creds")
    assert await works(NatsOptions(servers=(server.url,), creds=right))
    wrong = Operator().creds(tmp_path / "wrong.creds")
    text = await refusal(NatsOptions(servers=(server.url,), creds=wrong))
    assert f"the server refuses the credentials in {wrong}" in text


async def test_expired_credentials_are_read_again(serve: Serve, tmp_path: Path) -> None:
    operator = Operator()
    server = await serve(operator.config())
    file = tmp_path / "short.creds"
    lost: list[StoreError] = []
    options = NatsOptions(servers=(server.url,), creds=str(file))

    stack = AsyncExitStack()

    async def connected() -> Any:
        """Connect before the credentials expire, if this machine is fast enough."""
        operator.creds(file, expires_in_s=3)
        with suppress(ConnectError):
            return await stack.enter_async_context(connect(options))
        return None

    connection = await eventually(connected)
    assert connection is not None
    with connection.on_lost(lost.append):
        await eventually(lambda: lost)
    # the error may get lost if this process sends something at the same time
    assert re.search("authentication expired|closed the connection", str(lost[0]))
    operator.creds(file)
    await eventually(lambda: responds(connection))
    await stack.aclose()


async def responds(connection: Any) -> bool:
    with suppress(StoreError):
        return bool(await connection.api("INFO"))
    return False


async def test_the_certificate_of_the_server_must_be_trusted(
    serve: Serve, tls_config: str, ca_file: str
) -> None:
    server = await serve(f"tls {{ {tls_config}, {PATIENT} }}")
    assert await works(NatsOptions(servers=(server.url,), tls_ca=ca_file))
    assert await works(NatsOptions(servers=(server.url.replace("nats:", "tls:"),), tls_ca=ca_file))
    assert "set tls_ca to the CA that does" in await refusal(server.url)


async def test_a_server_may_require_a_client_certificate(
    serve: Serve, tls_config: str, ca_file: str, own_cert: NatsOptions
) -> None:
    server = await serve(f"tls {{ {tls_config}, verify: true, {PATIENT} }}")
    anonymous = NatsOptions(servers=(server.url,), tls_ca=ca_file)
    assert await works(own_cert.over(anonymous))
    assert "client certificate" in await refusal(anonymous)


async def test_tls_may_precede_the_info_message(
    serve: Serve, tls_config: str, ca_file: str
) -> None:
    server = await serve(f"tls {{ {tls_config}, handshake_first: true, {PATIENT} }}")
    options = NatsOptions(servers=(server.url,), tls_ca=ca_file, tls_first=True)
    assert await works(options)


async def test_no_secret_is_sent_to_a_server_without_tls(
    serve: Serve, ca_file: str, tmp_path: Path
) -> None:
    server = await serve("trace: true\ndebug: true")
    options = NatsOptions(servers=(server.url,), tls_ca=ca_file, token=SECRET)
    assert "the server offers no TLS" in await refusal(options)
    assert "CONNECT" not in server.log()


async def test_invalid_files_are_named_before_the_connection(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("SUA nothing of use")
    for options in (
        NatsOptions(creds=str(tmp_path / "none")),
        NatsOptions(creds=str(empty)),
        NatsOptions(nkey=str(empty)),
        NatsOptions(tls_ca=str(empty)),
        NatsOptions(tls_cert=str(empty), tls_key=str(empty)),
    ):
        with pytest.raises(UsageError, match=str(tmp_path)):
            await works(options)


async def test_the_log_has_no_secret(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = await serve(f'authorization {{ user: ann, password: "{SECRET}", {PATIENT} }}')
    url = server.url.replace("//", "//ann:s3cret%2Fp%40ss@")
    async with connect(url) as connection:
        server.kill()
        await eventually(lambda: not connection.connected)
        assert "s3cret" not in str(connection.state())
        await server.start()
        await connection.wait_connected()
    assert server.url in caplog.text
    assert "s3cret" not in caplog.text
