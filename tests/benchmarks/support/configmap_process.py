"""Applies one ConfigMap per desired object, and prints how long that takes.

    python -m tests.benchmarks.support.configmap_process \\
        SIDE NAMESPACE COUNT NATS SERVER TOKEN LOOP

prints a `Result`. SIDE is one of:

- `natsctl`: a controller of Items in a bucket;
- `aiohttp`: server-side applies of a list in memory;
- `kopf`: the same applies in kopf's handlers of custom resources;
- `caching`: a controller whose ConfigMaps exist already.

Each side sends the same requests, and the same number of them at a time: the bodies of the bare
applies have the labels and annotations that natsctl adds. Python's garbage collector has the same
thresholds on each side, those of `natsctl run`.
"""

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp
import kopf
import msgspec
import uvloop

from natsctl import (
    Controller,
    ControllerRuntime,
    KubeOptions,
    connect,
    connect_kube,
    kube,
    primary,
    secondary,
)
from tests.benchmarks.support.dataset import ITEMS, Item, key, value
from tests.benchmarks.support.process import memory_bytes

IN_FLIGHT = 10
GROUP, VERSION, PLURAL = "bench.natsctl.io", "v1", "items"
APPLY = "application/apply-patch+yaml"


class Result(msgspec.Struct, frozen=True):
    """The wall time, the processor time of this process and its final resident memory."""

    wall_s: float
    cpu_s: float
    rss_bytes: int


class Arguments(msgspec.Struct, frozen=True, array_like=True):
    side: str
    namespace: str
    count: int
    nats: str
    server: str
    token: str
    loop: str


def name_of(item: str) -> str:
    return item.replace(".", "-")


def manifest(item: str, text: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name_of(item), "labels": {"app": "bench"}},
        "data": {"text": text},
    }


def text_of(number: int) -> str:
    return msgspec.json.decode(value(number), type=Item).spec.text


def owned_manifest(item: str, text: str, namespace: str) -> dict[str, object]:
    """Return the manifest with the metadata that natsctl adds at the creation of an object."""
    owner = {"natsctl.io/owner-kind": ITEMS.name, "natsctl.io/owner-key": item}
    marks = {"natsctl.io/applied": "0" * 32, "natsctl.io/installation": "0" * 36}
    metadata = {
        "name": name_of(item),
        "namespace": namespace,
        "labels": {"app": "bench", **owner},
        "annotations": {**owner, **marks},
        "resourceVersion": "1",
    }
    return {**manifest(item, text), "metadata": metadata}


class Watch:
    """Measures from the first start to the stop."""

    def __init__(self) -> None:
        self._begun: tuple[float, float] | None = None
        self.wall_s = self.cpu_s = 0.0

    def start(self) -> None:
        self._begun = self._begun or (time.perf_counter(), time.process_time())

    def stop(self) -> None:
        assert self._begun is not None
        wall, cpu = self._begun
        self.wall_s, self.cpu_s = time.perf_counter() - wall, time.process_time() - cpu

    @property
    def result(self) -> Result:
        return Result(self.wall_s, self.cpu_s, memory_bytes())


async def with_natsctl(arguments: Arguments) -> Result:
    watch = Watch()

    class Bench(Controller):
        items = primary(ITEMS)
        maps = secondary(kube("v1", "ConfigMap", namespace=arguments.namespace))
        workers = IN_FLIGHT
        handled = 0

        async def sync_handler(self, key: str) -> float | None:
            watch.start()
            item = self.items.get(key)
            if item is not None:
                await self.maps.apply(manifest(key, item.spec.text))
            self.handled += 1
            if self.handled == arguments.count:
                watch.stop()
                self.runtime.stop()
            return None

    options = KubeOptions(server=arguments.server, token=arguments.token, tls_insecure=True)
    # it stops at the last apply, and has no time to send thousands of events, which it would log
    logging.getLogger("natsctl.telemetry.outbox").setLevel(logging.ERROR)
    async with connect(arguments.nats) as nats, connect_kube(options) as cluster:
        if arguments.side == "caching":
            watch.start()
        await ControllerRuntime(Bench(), nats=nats, kube=cluster).run()
    return watch.result


class Applier:
    def __init__(self, arguments: Arguments, session: aiohttp.ClientSession) -> None:
        self._namespace = arguments.namespace
        self._path = f"{arguments.server}/api/v1/namespaces/{arguments.namespace}/configmaps/"
        self._headers = {"Authorization": f"Bearer {arguments.token}", "Content-Type": APPLY}
        self._session = session

    async def apply(self, item: str, text: str) -> None:
        async with self._session.patch(
            f"{self._path}{name_of(item)}?fieldManager=bench&force=true",
            data=msgspec.json.encode(owned_manifest(item, text, self._namespace)),
            headers=self._headers,
            ssl=False,
        ) as response:
            await response.read()
            response.raise_for_status()


async def with_aiohttp(arguments: Arguments) -> Result:
    items, watch = iter(range(arguments.count)), Watch()

    async def work(applier: Applier) -> None:
        for number in items:
            await applier.apply(key(number), text_of(number))

    async with aiohttp.ClientSession() as session:
        applier = Applier(arguments, session)
        watch.start()
        await asyncio.gather(*(work(applier) for _ in range(IN_FLIGHT)))
        watch.stop()
    return watch.result


async def with_kopf(arguments: Arguments) -> Result:
    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    stop, handled, watch = asyncio.Event(), 0, Watch()

    @kopf.on.login(registry=registry)
    def _login(**_: object) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=arguments.server, token=arguments.token, insecure=True)

    async with aiohttp.ClientSession() as session:
        applier = Applier(arguments, session)

        @kopf.on.create(GROUP, VERSION, PLURAL, registry=registry)  # type: ignore[arg-type, unused-ignore]  # only if kopf is installed
        async def _create(spec: dict[str, str], **_: object) -> None:
            nonlocal handled
            watch.start()
            await applier.apply(spec["item"], spec["text"])
            handled += 1
            if handled == arguments.count:
                stop.set()

        operating = asyncio.create_task(
            kopf.operator(
                registry=registry,
                settings=settings,
                namespaces=[arguments.namespace],
                standalone=True,
                stop_flag=stop,
            )
        )
        await stop.wait()
        watch.stop()
        await operating
    return watch.result


SIDES: dict[str, Callable[[Arguments], Awaitable[Result]]] = {
    "natsctl": with_natsctl,
    "caching": with_natsctl,
    "aiohttp": with_aiohttp,
    "kopf": with_kopf,
}


def main() -> None:
    arguments = msgspec.convert(sys.argv[1:], Arguments, strict=False)
    factory = uvloop.new_event_loop if arguments.loop == "uvloop" else None
    gc.collect()
    gc.freeze()  # as `natsctl run` does; so each side has it
    gc.set_threshold(10_000)
    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(SIDES[arguments.side](arguments))  # type: ignore[arg-type,var-annotated]  # a coroutine
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
