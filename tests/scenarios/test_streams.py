"""The controller of JetStream streams and consumers, over the JetStream API in memory."""

from typing import Any

from controllers.streams import Consumer, Consumers, ConsumerSpec, Stream, Streams, StreamSpec
from natsctl.errors import StoreError
from natsctl.testing import MemoryStores, running


def stream(**config: Any) -> Stream:
    return Stream(spec=StreamSpec(config=config))


async def test_a_stream_is_created_updated_and_deleted(memory_stores: MemoryStores) -> None:
    controller, jetstream = Streams(), memory_stores.jetstream
    async with running(controller, stores=memory_stores) as harness:
        await controller.streams.put("orders", stream(subjects=["orders.>"]))
        await harness.run_until_idle()
        assert jetstream.streams() == ["orders"]
        await controller.streams.put("orders", stream(subjects=["orders.>"], max_msgs=5))
        await harness.run_until_idle()
        assert (await jetstream.api("STREAM.INFO.orders"))["config"]["max_msgs"] == 5
        await controller.streams.delete("orders")
        await harness.run_until(lambda: not jetstream.streams())


async def test_a_stream_deleted_by_hand_is_created_again(memory_stores: MemoryStores) -> None:
    controller, jetstream = Streams(), memory_stores.jetstream
    async with running(controller, stores=memory_stores) as harness:
        await controller.streams.put("orders", stream(subjects=["orders.>"]))
        await harness.run_until_idle()
        await jetstream.api("STREAM.DELETE.orders")
        await harness.run_until(jetstream.streams)


async def test_a_stream_created_by_others_is_not_changed(memory_stores: MemoryStores) -> None:
    controller, jetstream = Streams(), memory_stores.jetstream
    await jetstream.api("STREAM.CREATE.orders", {"name": "orders", "max_msgs": 7})
    async with running(controller, stores=memory_stores) as harness:
        await controller.streams.put("orders", stream(max_msgs=5))
        await harness.run_for(3600)
        assert (await jetstream.api("STREAM.INFO.orders"))["config"]["max_msgs"] == 7
        await controller.streams.delete("orders")
        await harness.run_for(3600)
    assert jetstream.streams() == ["orders"]


async def test_a_failed_api_request_is_retried(memory_stores: MemoryStores) -> None:
    controller, jetstream = Streams(), memory_stores.jetstream
    jetstream.fail(StoreError("JetStream not enabled"))
    async with running(controller, stores=memory_stores) as harness:
        await controller.streams.put("orders", stream())
        await harness.run_until(lambda: len(jetstream.requests) > 3)
        assert jetstream.streams() == []
        jetstream.fail(None)
        await harness.run_until(jetstream.streams)


async def test_a_consumer_waits_for_its_stream(memory_stores: MemoryStores) -> None:
    controller, jetstream = Consumers(), memory_stores.jetstream
    async with running(controller, stores=memory_stores) as harness:
        spec = ConsumerSpec(stream="orders", config={"ack_policy": "explicit"})
        await controller.consumers.put("billing", Consumer(spec=spec))
        await harness.run_for(60)
        assert jetstream.consumers("orders") == []
        await jetstream.api("STREAM.CREATE.orders", {"name": "orders"})
        await harness.run_until(lambda: jetstream.consumers("orders") == ["billing"])
