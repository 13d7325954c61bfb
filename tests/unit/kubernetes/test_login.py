"""Expired or rejected credentials are renewed once for all waiting requests."""

import asyncio
import logging

import msgspec
import pytest

from natsctl.errors import ConnectError
from natsctl.kubernetes.credentials import Access, Login
from natsctl.telemetry.hiding import hidden

FIRST = Access(
    server="https://kube.test",
    namespace="default",
    context=None,
    in_pod=False,
    headers=(("Authorization", "Bearer s3cret"),),
    secret="s3cret",
    tls=True,
    tls_digest=b"",
    server_name=None,
    proxy=None,
    good_for_s=60.0,
)


class Source:
    """Loads new credentials in one second."""

    def __init__(self) -> None:
        self.loads = 0
        self.failing = False

    async def load(self, before: Access | None) -> Access:
        self.loads += 1
        await asyncio.sleep(1)
        if self.failing:
            raise ConnectError("the plugin fails")
        return msgspec.structs.replace(before, secret=f"s3cret{self.loads}")  # type: ignore[return-value,type-var]


async def test_expired_credentials_are_renewed_once() -> None:
    source = Source()
    login = Login(FIRST, source.load, retry_s=10)
    await asyncio.sleep(59)
    assert await login.current() is FIRST
    await asyncio.sleep(1)
    accesses = await asyncio.gather(*(login.current() for _ in range(10)))
    assert {access.secret for access in accesses} == {"s3cret1"}
    assert source.loads == 1


async def test_many_rejected_requests_renew_the_credentials_once() -> None:
    source = Source()
    login = Login(FIRST, source.load, retry_s=10)
    accesses = await asyncio.gather(*(login.renew(FIRST) for _ in range(10)))
    assert {access.secret for access in accesses} == {"s3cret1"}
    assert await login.renew(FIRST) is accesses[0]  # a late rejection gets the same access
    assert source.loads == 1


async def test_a_cancelled_renewal_is_repeated_by_the_next_request() -> None:
    source = Source()
    login = Login(FIRST, source.load, retry_s=10)
    first = asyncio.create_task(login.renew(FIRST))
    second = asyncio.create_task(login.renew(FIRST))
    await asyncio.sleep(0.5)
    first.cancel()
    assert (await second).secret == "s3cret2"


async def test_a_failed_renewal_keeps_the_old_credentials_until_the_retry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()
    source.failing = True
    login = Login(FIRST, source.load, retry_s=10)
    await asyncio.sleep(60)
    with caplog.at_level(logging.WARNING):
        assert await asyncio.gather(*(login.current() for _ in range(5))) == [FIRST] * 5
    assert source.loads == 1
    assert caplog.messages == [
        "cannot renew credentials server=https://kube.test error='the plugin fails'"
    ]
    source.failing = False
    await asyncio.sleep(10)
    assert (await login.current()).secret == "s3cret2"


async def test_a_rejection_without_new_credentials_is_an_error() -> None:
    source = Source()
    source.failing = True
    login = Login(FIRST, source.load, retry_s=10)
    with pytest.raises(ConnectError):
        await login.renew(FIRST)


def test_the_repr_of_an_access_has_no_secret() -> None:
    assert "s3cret" not in repr(FIRST)


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("s3cret-token", "with s3cret-token", "with ***"),
        ("YW5uOmh1c2gtaHVzaA==", "ann, hush-hush, YW5uOmh1c2gtaHVzaA==", "ann, ***, ***"),
    ],
)
async def test_current_and_renewed_credentials_are_hidden_in_texts(
    secret: str, text: str, shown: str
) -> None:
    async def load(_: Access | None) -> Access:
        return msgspec.structs.replace(FIRST, secret="the-next-one")

    login = Login(msgspec.structs.replace(FIRST, secret=secret), load, retry_s=1.0)
    with login.secrets:
        assert hidden(text) == shown
        await asyncio.sleep(61)
        await login.current()
        assert hidden(f"the-next-one, {text}") == f"***, {shown}"
    assert hidden(text) == text
