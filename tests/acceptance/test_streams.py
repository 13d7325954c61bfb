"""`natsctl run` with the streams controller manages streams and consumers."""

from collections.abc import Awaitable, Callable

import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.eventually import eventually


async def test_put_and_delete_manage_a_stream_and_its_consumer(
    natsctl: Natsctl,
    jetstream: JetStreamContext,
    daemon: Callable[..., Awaitable[Running]],
) -> None:
    await daemon("controllers.streams:Streams", "controllers.streams:Consumers")
    await natsctl.done("put", "streams", "orders", '{"spec": {"config": {"subjects": ["o.>"]}}}')
    await natsctl.done("put", "consumers", "billing", '{"spec": {"stream": "orders"}}')

    async def consumer_exists() -> bool:
        try:
            info = await jetstream.consumer_info("orders", "billing")
        except NotFoundError:
            return False
        return info.config.durable_name == "billing"

    await eventually(consumer_exists)
    await natsctl.done("delete", "consumers", "billing", "--wait-timeout", "60")
    await natsctl.done("delete", "streams", "orders", "--wait-timeout", "60")
    with pytest.raises(NotFoundError):
        await jetstream.stream_info("orders")
