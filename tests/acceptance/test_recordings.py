"""Recordings of managed controllers and watchers, and their history after a restart."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.eventually import eventually

SITES = """
from natsctl import (
    ExternalClientFns, InformerController, ManagedController, ManagedReconciler, Object,
    Observation, SimpleWatcher, kv,
)

class Site(Object, frozen=True):
    spec: dict[str, str] = {}

SITES = kv(Site, bucket="sites")

class Hosts(ManagedController[Site]):
    kind = SITES

    def reconciler(self, managed):
        client = ExternalClientFns(observe_fn=self.observe)
        async def connect(managed):
            return client
        return ManagedReconciler(managed, connecter=connect, recorder=self)

    async def observe(self, managed):
        address = await self.blocking(look_up, managed.key)
        return Observation(exists=True, up_to_date=address["v4"] == "::1")

class Mail(InformerController):
    name = "mail"

    def __init__(self):
        super().__init__()
        self.add_informer(SITES)
        self.add_watcher(SimpleWatcher(add_func=self.add), SITES)

    async def add(self, new):
        raise ValueError(f"no address for {new.key}")

def look_up(name):
    return {"v6": "::1"}
"""


@pytest.fixture
async def daemon(natsctl: Natsctl, folder: Path) -> AsyncIterator[Running]:
    """Run both controllers until a sync of the site `a` has failed in each."""
    (folder / "sites.py").write_text(SITES)
    (folder / "corrected.py").write_text(
        SITES.replace('["v4"]', '["v6"]').replace("raise ValueError", "return print")
    )
    async with natsctl.running("run", "-c", "sites:Hosts", "-c", "sites:Mail") as running:
        await running.logged("primaries listed, syncing", times=2)
        assert (await natsctl("put", "sites", "a", '{"spec": {}}')).status == 0
        await running.logged("reconciliation failed")
        await running.logged("a watcher failed")
        yield running


@pytest.mark.parametrize(
    ("controller", "error"),
    [("Hosts", "KeyError: 'v4'"), ("Mail", "ValueError: no address for a")],
)
@pytest.mark.usefixtures("daemon")
async def test_a_recorded_failure_is_replayed_and_then_corrected(
    natsctl: Natsctl, controller: str, error: str
) -> None:
    name = controller.lower()

    async def is_fetched() -> bool:
        fetched = await natsctl("replay", "sites/a", "-c", name, "-o", "a.json")
        assert fetched.status == 0, fetched
        return True

    await eventually(is_fetched)  # the failure is logged before it is recorded
    failed = await natsctl("replay", "a.json", "-c", f"sites:{controller}")
    assert (failed.status, f"replayed  {error}" in failed.out) == (1, True), failed
    corrected = await natsctl("replay", "a.json", "-c", f"corrected:{controller}")
    assert corrected.status == 0, corrected


@pytest.mark.usefixtures("daemon")
async def test_a_recording_is_written_to_standard_output(natsctl: Natsctl, folder: Path) -> None:
    async def is_fetched() -> bool:
        fetched = await natsctl("replay", "sites/a", "-c", "hosts", "-o", "-")
        assert fetched.json["key"] == "a"
        return True

    await eventually(is_fetched)
    assert not (folder / "-").exists()


@pytest.mark.parametrize("text", [None, "", "{", '{"format": "other"}'])
async def test_a_damaged_recording_is_no_failure_as_recorded(
    natsctl: Natsctl, folder: Path, text: str | None
) -> None:
    (folder / "corrected.py").write_text(SITES)
    if text is not None:
        (folder / "a.json").write_text(text)
    result = await natsctl("replay", "a.json", "-c", "corrected:Hosts")
    assert (result.status, "a.json" in result.err) == (2, True)


@pytest.mark.parametrize("name", ["shop_inspect", "zipimport_shop"])
@pytest.mark.usefixtures("daemon")
async def test_a_replay_changes_nothing(natsctl: Natsctl, folder: Path, name: str) -> None:
    async def is_fetched() -> bool:
        fetched = await natsctl("replay", "sites/a", "-c", "mail", "-o", "a.json")
        assert fetched.status == 0, fetched
        return True

    await eventually(is_fetched)
    harmful = SITES.replace("raise ValueError", "open('harm.txt', 'w').write")
    (folder / f"{name}.py").write_text(harmful)
    result = await natsctl("replay", "a.json", "-c", f"{name}:Mail")
    assert (result.status, "a change of the file harm.txt" in result.out) == (3, True), result
    assert not (folder / "harm.txt").exists()


@pytest.mark.parametrize("name", ["hosts", "mail"])
async def test_the_last_syncs_of_an_earlier_process_are_explained(
    natsctl: Natsctl, daemon: Running, name: str
) -> None:
    async def explained() -> dict[str, Any]:
        explanations = (await natsctl("describe", "sites/a", "-c", name, "-o", "json")).json
        explanation: dict[str, Any] = explanations[0]
        return explanation

    async def recorded() -> bool:
        return "SyncFailed" in [event["reason"] for event in (await explained())["events"]]

    await eventually(recorded, within_s=60)
    assert (await natsctl("pause", "--all", "-c", name)).status == 0  # it makes no further syncs
    assert await daemon.ends(signal.SIGTERM) == 0
    async with natsctl.running("run", "-c", "sites:Hosts", "-c", "sites:Mail") as restarted:
        await restarted.logged("primaries listed, syncing", times=2)
        outcomes = {bool(sync["error"]) for sync in (await explained())["syncs"]}
        assert outcomes == {True}
