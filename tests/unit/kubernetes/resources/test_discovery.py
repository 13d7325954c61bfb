"""What was found is remembered, what was not is looked for again, and lookups are shared."""

import asyncio
import json

import pytest

from natsctl.errors import StoreError, StoreMissingError
from natsctl.kubernetes.http.wire import Reply
from natsctl.kubernetes.resources.discovery import Discovery


class Server:
    """Answers lookups after a second with the kinds that it has, by group version."""

    def __init__(self, **kinds: list[str]) -> None:
        self.kinds = kinds
        self.lookups = 0
        self.failure: StoreError | None = None

    async def call(self, method: str, path: str) -> Reply:
        self.lookups += 1
        await asyncio.sleep(1)
        if self.failure is not None:
            raise self.failure
        kinds = self.kinds.get(path.rpartition("/")[2])
        if kinds is None:
            raise StoreMissingError("no such path")
        resources = [
            {"name": f"{kind.lower()}s", "kind": kind, "namespaced": True, "verbs": ["get"]}
            for kind in kinds
        ]
        return Reply(200, json.dumps({"resources": resources}).encode())


async def test_what_was_found_is_believed_for_a_while() -> None:
    server = Server(v1=["Pod", "Secret"])
    discovery = Discovery(server, ttl_s=600)  # type: ignore[arg-type]
    await discovery.find("v1", "Pod")
    await discovery.find("v1", "Secret")
    assert server.lookups == 1
    await asyncio.sleep(600)
    await discovery.find("v1", "Pod")
    assert server.lookups == 2


async def test_what_is_missing_is_looked_for_each_time() -> None:
    server = Server(v1=["Pod"])
    discovery = Discovery(server)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(StoreMissingError):
            await discovery.find("v1", "Rollout")
    assert server.lookups == 3
    server.kinds["v1"].append("Rollout")
    assert (await discovery.find("v1", "Rollout")).plural == "rollouts"


async def test_what_is_missing_may_be_believed_for_a_while_too() -> None:
    server = Server(v1=["Pod"])
    discovery = Discovery(server, miss_ttl_s=60)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(StoreMissingError):
            await discovery.find("v1", "Rollout")
    assert server.lookups == 1
    await asyncio.sleep(60)
    server.kinds["v1"].append("Rollout")
    await discovery.find("v1", "Rollout")


async def test_a_lookup_that_is_on_its_way_is_shared() -> None:
    server = Server(v1=["Pod", "Secret"], v2=["Pod"])
    discovery = Discovery(server)  # type: ignore[arg-type]
    kinds = ["Pod", "Secret", "Rollout"] * 10
    found = await asyncio.gather(
        *(discovery.find("v1", kind) for kind in kinds),
        discovery.find("v2", "Pod"),
        return_exceptions=True,
    )
    assert server.lookups == 2
    assert sum(isinstance(one, StoreMissingError) for one in found) == 10
    assert asyncio.get_running_loop().time() == 1.0


async def test_whoever_gives_up_leaves_the_others_their_answer() -> None:
    server = Server(v1=["Pod"])
    discovery = Discovery(server)  # type: ignore[arg-type]
    first = asyncio.create_task(discovery.find("v1", "Pod"))
    second = asyncio.create_task(discovery.find("v1", "Pod"))
    await asyncio.sleep(0.5)
    first.cancel()
    assert (await second).kind == "Pod"
    assert first.cancelled()


async def test_a_failure_is_told_and_not_remembered() -> None:
    server = Server(v1=["Pod"])
    server.failure = StoreError("busy")
    discovery = Discovery(server)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="busy"):
        await discovery.find("v1", "Pod")
    server.failure = None
    assert (await discovery.find("v1", "Pod")).namespaced


async def test_an_answer_that_makes_no_sense_is_a_failure() -> None:
    class Odd(Server):
        async def call(self, method: str, path: str) -> Reply:
            return Reply(200, b"<html>")

    with pytest.raises(StoreError, match="GET /api/v1 returned an invalid response"):
        await Discovery(Odd()).find("v1", "Pod")  # type: ignore[arg-type]
