"""A secret that a handler has read stays out of every text about its failure."""

import json
from pathlib import Path

from tests.support.cli.natsctl_command import Natsctl
from tests.support.eventually import eventually

TOKEN, PASSWORD = "wonderland-8812", "looking-glass-7"

SHOPS = """
from natsctl import (
    Controller, ExternalClientFns, ManagedController, ManagedReconciler, Object, Observation, kv,
    primary, tertiary,
)

class Shop(Object, frozen=True):
    spec: dict[str, str] = {}

class Shops(Controller):
    shops = primary(kv(Shop, bucket="shops"))
    accounts = tertiary(kv(Shop, bucket="accounts"))

    async def sync_handler(self, key):
        shop = self.shops.get(key)
        account = self.accounts.get("all")
        try:
            raise LookupError(f"no account for {shop.spec['token']}")
        except LookupError as error:
            words = shop.spec["token"], account.spec["password"]
            raise ValueError(f"{words[0]} and {words[1]} are wrong") from error

class Disks(ManagedController):
    kind = kv(Shop, bucket="shops")

    def reconciler(self, managed):
        async def connect(managed):
            return ExternalClientFns(observe_fn=self.observe)
        return ManagedReconciler(managed, connecter=connect, recorder=self)

    async def observe(self, managed):
        raise ValueError(f"{managed.spec['token']} is wrong")
"""


async def test_a_secret_that_was_read_is_in_no_text_about_the_failure(
    natsctl: Natsctl, folder: Path
) -> None:
    (folder / "shops.py").write_text(SHOPS)
    account = json.dumps({"spec": {"password": PASSWORD}})
    await natsctl.done("put", "accounts", "all", account, "--create-bucket")
    async with natsctl.running("run", "-c", "shops:Shops", "-c", "shops:Disks") as running:
        await running.logged("primaries listed", times=2)
        await natsctl.done("put", "shops", "a", json.dumps({"spec": {"token": TOKEN}}))
        await running.logged("sync failed")
        await running.logged("reconciliation failed")

        async def is_explained() -> bool:
            explained = await natsctl.done("describe", "shops/a", "-c", "shops")
            return "SyncFailed" in explained

        await eventually(is_explained)
        shown = [
            await natsctl.done("status"),
            await natsctl.done("status", "-o", "json"),
            await natsctl.done("describe", "shops/a", "-c", "disks"),
            await natsctl.done("describe", "shops/a", "-c", "shops"),
            await natsctl.done("describe", "shops/a", "-c", "shops", "-o", "json"),
            await natsctl.done("replay", "shops/a", "-c", "shops", "-o", "-"),
            json.dumps((await natsctl("get", "shops", "a", "-o", "json")).json["status"]),
        ]
    assert "no account for ***" in running.log  # the cause, in the traceback
    for text in (running.log, *shown):
        assert "*** and *** are wrong" in text or "*** is wrong" in text or "FAILING" in text
        assert TOKEN not in text
        assert PASSWORD not in text
