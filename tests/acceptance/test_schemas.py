"""Objects are validated against the schema that a daemon has published."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.cli.scripted_editor import Editor
from tests.support.eventually import eventually
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
UPGRADED = """
import msgspec

from natsctl import Controller, Object, kv, primary


class ShopSpecV1(msgspec.Struct, frozen=True):
    image: str


class ShopV1(Object, frozen=True):
    spec: ShopSpecV1


class ShopSpec(msgspec.Struct, frozen=True):
    images: tuple[str, ...]


class Shop(Object, frozen=True):
    spec: ShopSpec


def upgrade(old: ShopV1) -> Shop:
    return Shop(spec=ShopSpec((old.spec.image,)))


class Shops(Controller):
    shops = primary(kv(Shop, bucket="shops", older=[(ShopV1, upgrade)]))

    async def sync_handler(self, key: str) -> None:
        pass
"""
SOURCE = "controller shops 1.2"
STORED_VERSION = "natsctl.io/stored-version"


@pytest.fixture
async def shops(natsctl: Natsctl, folder: Path, daemon: Daemon) -> Running:
    """A daemon that has published the schema of its kind."""
    (folder / "shops.py").write_text(SHOPS)
    running = await daemon("shops:Shops")
    await running.logged("published a schema")
    return running


@pytest.mark.usefixtures("shops")
class TestPut:
    async def test_a_wrong_type_is_refused_with_the_field(self, natsctl: Natsctl) -> None:
        refused = await natsctl("put", "shops", "a", '{"spec": {"text": 3, "replicas": 12}}')
        assert refused.status == 1
        assert "spec.text: 3 is not of type 'string'" in refused.err
        assert "spec.replicas: 12 is greater than the maximum of 9" in refused.err
        assert SOURCE in refused.err
        assert (await natsctl("get", "shops", "a")).status == 3

    async def test_an_unknown_field_causes_a_warning_with_the_nearest_name(
        self, natsctl: Natsctl
    ) -> None:
        stored = await natsctl("put", "shops", "a", '{"spec": {"text": "hi", "replica": 2}}')
        assert (stored.status, stored.out) == (0, "shops/a created at revision 1\n")
        assert "spec.replica is unknown; did you mean replicas?" in stored.err
        assert SOURCE in stored.err

    async def test_warn_stores_an_invalid_object_and_names_each_fault(
        self, natsctl: Natsctl
    ) -> None:
        invalid = '{"spec": {"replicas": 0}}'
        stored = await natsctl("put", "shops", "a", invalid, "--validate", "warn")
        assert stored.out == "shops/a created at revision 1\n"
        begin = f"warning: shops/a: not a valid Shop.shops of {SOURCE}: "
        assert sorted(stored.err.splitlines()) == [
            f"{begin}spec.replicas: 0 is less than the minimum of 1",
            f"{begin}spec.text: is required",
        ]

    @pytest.mark.parametrize("option", ["--validate=ignore", "--raw"])
    async def test_an_object_is_stored_without_a_check(self, natsctl: Natsctl, option: str) -> None:
        stored = await natsctl("put", "shops", "a", '{"spec": {}}', option)
        assert (stored.status, stored.err) == (0, "")

    async def test_a_valid_object_causes_no_message(self, natsctl: Natsctl) -> None:
        stored = await natsctl("put", "shops", "a", '{"spec": {"text": "hi"}}')
        assert (stored.status, stored.err) == (0, "")


@pytest.mark.usefixtures("shops")
class TestApply:
    async def test_no_document_is_applied_if_one_is_invalid(self, natsctl: Natsctl) -> None:
        documents = (
            "{bucket: shops, key: a, spec: {text: hi}}\n---\n{bucket: shops, key: b, spec: {}}\n"
        )
        refused = await natsctl("apply", "-f", "-", stdin=documents)
        assert refused.status == 1
        assert "shops/b: not a valid Shop.shops" in refused.err
        assert "spec.text: is required" in refused.err
        assert (await natsctl("get", "shops")).rows == []

    async def test_labels_alone_are_applied_to_an_existing_object(self, natsctl: Natsctl) -> None:
        labels = "{bucket: shops, key: a, metadata: {labels: {team: x}}}"
        refused = await natsctl("apply", "-f", "-", stdin=labels)
        assert "spec: is required" in refused.err
        await natsctl.done("put", "shops", "a", '{"spec": {"text": "hi"}}')
        assert "shops/a configured" in await natsctl.done("apply", "-f", "-", stdin=labels)


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


async def test_a_bucket_without_a_schema_is_not_validated(natsctl: Natsctl) -> None:
    stored = await natsctl("put", "any", "a", '{"spec": 3}', "--create-bucket")
    assert (stored.status, stored.err) == (0, "")


@pytest.mark.usefixtures("shops")
async def test_a_second_daemon_of_the_same_version_writes_no_schema(
    natsctl: Natsctl, daemon: Daemon
) -> None:
    before = (await natsctl("get", "natsctl", "schema.Shop.shops", "-o", "json")).json
    second = await daemon("shops:Shops", options=("--log-level", "debug"))
    await second.logged("all schemas are published")
    after = (await natsctl("get", "natsctl", "schema.Shop.shops", "-o", "json")).json
    assert after == before


@pytest.mark.usefixtures("shops")
class TestColumns:
    @pytest.fixture
    async def with_two_shops(self, natsctl: Natsctl) -> Natsctl:
        """Two shops, whose controller has marked them ready."""
        await natsctl.done("put", "shops", "a", '{"spec": {"text": "v10", "replicas": 2}}')
        await natsctl.done("put", "shops", "b", '{"spec": {"text": "v9"}}')

        async def are_ready() -> bool:
            shown = await natsctl.done("get", "shops", "-o", "jsonpath={.status.ready}")
            return shown == "true\ntrue\n"

        await eventually(are_ready)
        return natsctl

    @pytest.mark.parametrize("command", [["get", "shops"], ["get", "-w", "shops", "--once"]])
    async def test_the_declared_columns_are_shown(
        self, with_two_shops: Natsctl, command: list[str]
    ) -> None:
        table = await with_two_shops(*command)
        headings = table.out.splitlines()[0].split()
        assert headings[-6:] == ["KEY", "REVISION", "GENERATION", "TEXT", "READY", "AGE"]
        assert [row[-3:-1] for row in table.rows] == [["v10", "true"], ["v9", "true"]]

    async def test_get_shows_the_declared_columns(self, with_two_shops: Natsctl) -> None:
        assert (await with_two_shops("get", "shops", "b")).rows[0][3:5] == ["v9", "true"]

    async def test_a_list_is_sorted_by_a_field(self, with_two_shops: Natsctl) -> None:
        listed = await with_two_shops.done("get", "shops", "--sort-by", "spec.text", "-o", "name")
        assert listed == "shops/b\nshops/a\n"

    async def test_custom_columns_show_missing_fields_as_none(
        self, with_two_shops: Natsctl
    ) -> None:
        columns = "custom-columns=SHOP:key,COPIES:spec.replicas"
        assert await with_two_shops.done("get", "shops", "-o", columns) == (
            "SHOP   COPIES\na      2\nb      <none>\n"
        )

    async def test_one_field_is_printed_alone(self, with_two_shops: Natsctl) -> None:
        assert (
            await with_two_shops.done("get", "shops", "a", "-o", "jsonpath={.spec.text}") == "v10\n"
        )
        assert (
            await with_two_shops.done("get", "shops", "-o", "jsonpath={.spec.replicas}") == "2\n\n"
        )


class TestSchema:
    async def test_schema_prints_the_json_schema_of_each_kind_without_a_server(
        self, folder: Path
    ) -> None:
        (folder / "shops.py").write_text(SHOPS)
        printed = (await Natsctl(folder)("explain", "-c", "shops:Shops", "-o", "jsonschema")).json
        assert printed.keys() == {"Shop.shops"}
        schema = printed["Shop.shops"]
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert schema["$defs"]["ShopSpec"]["properties"]["replicas"]["maximum"] == 9

    @pytest.mark.usefixtures("shops")
    async def test_schema_lists_and_prints_the_published_schemas(self, natsctl: Natsctl) -> None:
        assert (await natsctl("explain")).rows == [
            ["Shop.shops", ">", "1", "shops", "1.2", "primary"]
        ]
        printed = await natsctl("explain", "shops", "-o", "jsonschema")
        assert json.loads(printed.out)["$ref"] == "#/$defs/Shop"
        assert SOURCE in printed.err


class TestExplainKind:
    @pytest.mark.usefixtures("shops")
    async def test_fields_are_explained_with_types_limits_and_meanings(
        self, natsctl: Natsctl
    ) -> None:
        text = await natsctl.done("explain", "Shop.spec")
        assert SOURCE in text
        assert "  text      <string> -required-\n    the sign above the door." in text
        assert "  replicas  <integer>\n    default: 1\n    minimum: 1\n    maximum: 9" in text

    async def test_recursive_shows_the_nested_fields(self, folder: Path) -> None:
        (folder / "shops.py").write_text(SHOPS)
        command = ("explain-kind", "shops", "--recursive", "-c", "shops:Shops")
        text = await Natsctl(folder).done(*command)
        assert "  spec      <ShopSpec> -required-\n    text      <string> -required-" in text

    async def test_an_unknown_field_is_answered_with_the_nearest_name(self, folder: Path) -> None:
        (folder / "shops.py").write_text(SHOPS)
        ended = await Natsctl(folder)("explain-kind", "Shop.spec.txt", "-c", "shops:Shops")
        assert ended.status == 3
        assert "Shop.shops.spec has no field txt; did you mean text?" in ended.err


class TestVersions:
    """Commands store the version of the form that they write."""

    @pytest.fixture
    async def upgraded(self, natsctl: Natsctl, folder: Path, daemon: Daemon) -> Running:
        """A daemon whose kind has an older type, beside an object of that type."""
        (folder / "shops.py").write_text(UPGRADED)
        await natsctl.done("put", "shops", "a", '{"spec": {"image": "x"}}', "--create-bucket")
        running = await daemon("shops:Shops")
        await running.logged("published a schema")
        return running

    async def annotations(self, natsctl: Natsctl) -> dict[str, str]:
        shown = (await natsctl("get", "shops", "a", "-o", "json")).json
        shop_annotations: dict[str, str] = shown["metadata"].get("annotations", {})
        return shop_annotations

    @pytest.mark.usefixtures("upgraded")
    async def test_put_apply_and_edit_state_the_newest_version(
        self, natsctl: Natsctl, folder: Path, tmp_path: Path, nats_server: NatsServer
    ) -> None:
        await natsctl.done("put", "shops", "a", '{"spec": {"images": ["y"]}}')
        assert await self.annotations(natsctl) == {STORED_VERSION: "2"}
        listed = await natsctl("get", "shops", "-o", "wide")
        assert listed.out.split()[:5] == ["KEY", "REVISION", "GENERATION", "READY", "VERSION"]
        await natsctl.done("put", "shops", "a", '{"spec": {"image": "x"}}', "--validate=ignore")
        assert await self.annotations(natsctl) == {}
        applied = "{bucket: shops, key: a, spec: {images: [z]}}"
        await natsctl.done("apply", "-f", "-", stdin=applied)
        assert await self.annotations(natsctl) == {STORED_VERSION: "2"}
        await natsctl.done("put", "shops", "a", '{"spec": {"image": "x"}}', "--validate=ignore")
        editor = Editor(tmp_path / "editor")
        environ = {"EDITOR": editor.command, "TMPDIR": str(tmp_path)}
        editor.set_steps({"replace": {"image: x": "images: [w]"}})
        await Natsctl(folder, nats_server.url, environ=environ).done("edit", "shops", "a")
        assert await self.annotations(natsctl) == {STORED_VERSION: "2"}

    @pytest.mark.usefixtures("upgraded")
    async def test_labels_of_an_object_in_the_older_form_are_edited_as_they_are(
        self, natsctl: Natsctl, folder: Path, tmp_path: Path, nats_server: NatsServer
    ) -> None:
        labels = "{bucket: shops, key: a, metadata: {labels: {team: x}}}"
        await natsctl.done("apply", "-f", "-", stdin=labels)
        editor = Editor(tmp_path / "editor")
        environ = {"EDITOR": editor.command, "TMPDIR": str(tmp_path)}
        editor.set_steps({"replace": {"team: x": "team: y"}})
        await Natsctl(folder, nats_server.url, environ=environ).done("edit", "shops", "a")
        shown = (await natsctl("get", "shops", "a", "-o", "json")).json
        assert (shown["spec"], shown["metadata"]["labels"]) == ({"image": "x"}, {"team": "y"})

    @pytest.mark.usefixtures("upgraded")
    async def test_a_rollback_restores_the_version_of_the_revision(self, natsctl: Natsctl) -> None:
        await natsctl.done("put", "shops", "a", '{"spec": {"images": ["y"]}}')
        await natsctl.done("rollback", "shops", "a", "--to", "1")
        shown = (await natsctl("get", "shops", "a", "-o", "json")).json
        assert shown["spec"] == {"image": "x"}
        assert await self.annotations(natsctl) == {}
