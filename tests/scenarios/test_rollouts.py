"""A rollout gives sites its version a few at a time, and stops at a failed site."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controllers.rollouts import RECHECK_S, Rollouts
from natsctl.testing import Harness, MemoryStore, running
from tests.support.controllers.app_controller import document, edit
from tests.support.stores.documents import put

EU, US = {"region": "eu"}, {"region": "us"}
A_MOMENT = 1.0


class Fleet:
    """Reads and writes the buckets as users and the agents of sites do."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.rollouts = harness.stores.store(Rollouts.rollouts.kind)
        self.configs: MemoryStore = harness.stores.store(Rollouts.configs.kind)
        self.sites = harness.stores.store(Rollouts.sites.kind)

    async def site(self, key: str, labels: dict[str, str]) -> None:
        await put(self.sites, key, {"metadata": {"labels": labels}, "spec": {}})

    async def roll_out(
        self, key: str, version: str, *, sites: dict[str, str] = EU, at_once: int = 1
    ) -> None:
        spec = {"sites": sites, "config": {"version": version}, "atOnce": at_once}
        await put(self.rollouts, key, {"spec": spec})
        await asyncio.sleep(A_MOMENT)

    async def report(self, site: str, **status: object) -> None:
        """Write a status as the agent of the site does."""
        generation = (await document(self.configs, site))["metadata"]["generation"]
        status = {"observedGeneration": generation, **status}
        await edit(self.configs, site, "status", to=status)
        await asyncio.sleep(A_MOMENT)

    async def versions(self) -> dict[str, str]:
        keys = self.configs.keys()
        configs = {key: await document(self.configs, key) for key in keys}
        return {key: config["spec"]["config"]["version"] for key, config in configs.items()}

    async def status(self, key: str) -> dict[str, Any]:
        status: dict[str, Any] = (await document(self.rollouts, key))["status"]
        return status


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running(Rollouts()) as harness:
        fleet = Fleet(harness)
        for key in ("athens", "berlin", "calais"):
            await fleet.site(key, EU)
        await fleet.site("dallas", US)
        await asyncio.sleep(A_MOMENT)
        yield fleet


async def test_the_next_site_gets_the_version_once_the_last_is_ready(fleet: Fleet) -> None:
    await fleet.roll_out("eu", "1")
    assert await fleet.versions() == {"athens": "1"}
    await asyncio.sleep(3600)
    assert await fleet.versions() == {"athens": "1"}
    await fleet.report("athens", ready=True)
    assert await fleet.versions() == {"athens": "1", "berlin": "1"}
    await fleet.report("berlin", ready=True)
    await fleet.report("calais", ready=True)

    assert await fleet.versions() == {"athens": "1", "berlin": "1", "calais": "1"}
    assert await fleet.status("eu") == {"sites": 3, "given": 3, "ready": 3, "failed": []}


async def test_a_rollout_stops_at_a_failed_site_and_continues_once_it_recovers(
    fleet: Fleet,
) -> None:
    await fleet.roll_out("eu", "1", at_once=2)
    await fleet.report("athens", error="the disk is full")
    await fleet.report("berlin", ready=True)
    assert await fleet.versions() == {"athens": "1", "berlin": "1"}
    assert await fleet.status("eu") == {"sites": 3, "given": 2, "ready": 1, "failed": ["athens"]}

    await fleet.report("athens", ready=True)
    assert await fleet.versions() == {"athens": "1", "berlin": "1", "calais": "1"}
    assert (await fleet.status("eu"))["failed"] == []


async def test_a_new_version_starts_over_and_other_sites_keep_the_old_one(fleet: Fleet) -> None:
    await fleet.roll_out("eu", "1", at_once=3)
    for site in ("athens", "berlin", "calais"):
        await fleet.report(site, ready=True)
    await fleet.roll_out("eu", "2")
    await asyncio.sleep(3600)  # the old status is for the old version

    assert await fleet.versions() == {"athens": "2", "berlin": "1", "calais": "1"}
    await fleet.report("athens", ready=True)
    assert await fleet.versions() == {"athens": "2", "berlin": "2", "calais": "1"}


async def test_a_deselected_site_loses_its_config_and_a_deleted_site_keeps_it(
    fleet: Fleet,
) -> None:
    await fleet.roll_out("eu", "1", at_once=3)
    await fleet.site("athens", US)
    await fleet.sites.delete("berlin")
    await asyncio.sleep(RECHECK_S + A_MOMENT)
    assert await fleet.versions() == {"berlin": "1", "calais": "1"}


async def test_a_site_of_another_rollout_is_refused(fleet: Fleet) -> None:
    await fleet.roll_out("first", "1")
    await fleet.roll_out("second", "2")
    assert await fleet.versions() == {"athens": "1"}
    failing = fleet.harness.runtime.status().failing
    assert "owned by Rollout.rollouts first" in failing["second"]


async def test_a_finished_rollout_writes_nothing(fleet: Fleet) -> None:
    await fleet.roll_out("us", "1", sites=US)
    await fleet.report("dallas", ready=True)
    writes = (fleet.rollouts.writes, fleet.configs.writes)
    await asyncio.sleep(3600)
    assert (fleet.rollouts.writes, fleet.configs.writes) == writes
