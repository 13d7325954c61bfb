"""Objects are validated against the schema that a daemon has published."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.cli.scripted_editor import Editor
from tests.support.servers.nats_server import NatsServer

Daemon = Callable[..., Awaitable[Running]]

SHOPS = '''
from typing import Annotated

import msgspec

from natsctl import Controller, Object, kv, primary


class ShopSpec(msgspec.Struct, frozen=True):
    """A shop.

    Attributes:
        text: the sign above the door.
    """

    text: str
    replicas: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1


class Shop(Object, frozen=True):
    """A shop in a town."""

    spec: ShopSpec


class Shops(Controller):
    version = "1.2"
    shops = primary(
        kv(Shop, bucket="shops", columns={"TEXT": "spec.text", "READY": "status.ready"})
    )

    async def sync_handler(self, key: str) -> None:
        if self.shops.get(key) is not None:
            await self.shops.update_status(key, {"ready": True})
'''
PORTS = """
from typing import Annotated

import msgspec

from natsctl import Controller, Object, kv, primary

BY_NAME = msgspec.Meta(extra_json_schema={"x-kubernetes-list-map-keys": ["name"]})


class ShopSpec(msgspec.Struct, frozen=True):
    ports: Annotated[list[dict[str, str]], BY_NAME] = []


class Shop(Object, frozen=True):
    spec: ShopSpec


class Shops(Controller):
    shops = primary(kv(Shop, bucket="shops"))

    async def sync_handler(self, key: str) -> None:
        pass
"""


@pytest.fixture
async def shops(natsctl: Natsctl, folder: Path, daemon: Daemon) -> Running:
    """A daemon that has published the schema of its kind."""
    (folder / "shops.py").write_text(SHOPS)
    running = await daemon("shops:Shops")
    await running.logged("published a schema")
    return running


@pytest.mark.usefixtures("shops")
async def test_edit_opens_the_editor_again_with_the_fault(
    folder: Path, tmp_path: Path, nats_server: NatsServer
) -> None:
    editor = Editor(tmp_path / "editor")
    environ = {"EDITOR": editor.command, "TMPDIR": str(tmp_path)}
    natsctl = Natsctl(folder, nats_server.url, environ=environ)
    await natsctl.done("put", "shops", "a", '{"spec": {"text": "hi"}}')
    editor.set_steps({"replace": {"text: hi": "text: 3"}}, {"replace": {"text: 3": "text: bye"}})
    assert "shops/a configured" in await natsctl.done("edit", "shops", "a")
    _, second = editor.seen
    assert second.startswith("# not a valid Shop.shops of controller shops 1.2: spec.text:")


async def test_a_dry_run_names_the_published_kind_and_its_list_items(
    natsctl: Natsctl, folder: Path, daemon: Daemon
) -> None:
    (folder / "ports.py").write_text(PORTS)
    running = await daemon("ports:Shops")
    await running.logged("published a schema")
    ports = '{"spec": {"ports": [{"name": "a", "at": "1"}, {"name": "b", "at": "2"}]}}'
    await natsctl.done("put", "shops", "x", ports)
    ports = '{"spec": {"ports": [{"name": "b", "at": "3"}, {"name": "a", "at": "1"}]}}'
    shown = await natsctl("put", "shops", "x", ports, "--dry-run", "-o", "json")
    (action,) = shown.json["actions"]
    assert action["kind"] == "Shop.shops"
    assert action["diff"] == [{"path": "spec.ports[name=b].at", "before": "2", "after": "3"}]
