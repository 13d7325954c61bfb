"""Discovery caches found kinds, retries missing kinds and shares concurrent lookups."""

import asyncio
import json

import pytest

from natsctl.errors import StoreError, StoreMissingError
from natsctl.kubernetes.discovery import Discovery
from natsctl.kubernetes.transport import Reply


class Server:
    """Returns the kinds of a group version after one second."""

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


async def test_a_found_kind_is_cached_for_ttl_s() -> None:
    server = Server(v1=["Pod", "Secret"])
    discovery = Discovery(server)  # type: ignore[arg-type]
    await discovery.find("v1", "Pod")
    await discovery.find("v1", "Secret")
    assert server.lookups == 1
    await asyncio.sleep(600)
    await discovery.find("v1", "Pod")
    assert server.lookups == 2


async def test_a_missing_kind_is_looked_up_each_time() -> None:
    server = Server(v1=["Pod"])
    discovery = Discovery(server)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(StoreMissingError):
            await discovery.find("v1", "Rollout")
    assert server.lookups == 3
    server.kinds["v1"].append("Rollout")
    assert (await discovery.find("v1", "Rollout")).plural == "rollouts"


async def test_an_invalid_response_is_an_error() -> None:
    class InvalidServer(Server):
        async def call(self, method: str, path: str) -> Reply:
            return Reply(200, b"<html>")

    with pytest.raises(StoreError, match="GET /api/v1 returned an invalid response"):
        await Discovery(InvalidServer()).find("v1", "Pod")  # type: ignore[arg-type]
