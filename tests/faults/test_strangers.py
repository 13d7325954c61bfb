"""Others send what natsctl never would; it harms nothing, or only itself."""

import pytest
from faults.admin import Admin
from faults.copies import THINGS
from faults.play import playing
from servers import NatsServer, eventually

STATUS = {"Status": "503", "Description": "I am no control message"}


async def inboxes(admin: Admin) -> list[str]:
    """Return the subjects to which consumers send."""
    infos = [
        await admin.api(f"CONSUMER.INFO.{stream}.{name}")
        for stream, names in (await admin.consumers()).items()
        for name in names
    ]
    return [info["config"]["deliver_subject"] for info in infos]


@pytest.mark.parametrize("payload", [b"", b"nonsense"])
async def test_a_message_to_the_inbox_of_a_watch(nats_server: NatsServer, payload: bytes) -> None:
    async with playing(nats_server.url) as play:
        async with play.breaking(times=2):
            for inbox in await inboxes(play.admin):
                await play.admin.publish(inbox, payload)
        await play.user.put_all()
        await play.settled()


@pytest.mark.parametrize("key", ["odd", "k1"])
async def test_a_value_with_the_headers_of_a_control_message(
    nats_server: NatsServer, key: str
) -> None:
    async with playing(nats_server.url) as play:
        await play.admin.request(f"$KV.{THINGS}.{key}", b"", STATUS)
        await eventually(lambda: key in play.runtime.status().invalid)
        await play.user.put_all()
        await play.admin.delete(THINGS, "odd")
        play.user.mortal.add("odd")
        await play.settled()
        assert play.restarts == 0
