"""`natsctl history --changes` shows earlier desired states, and `natsctl rollback` restores one."""

import json
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue

from tests.support.cli.natsctl_command import InProcess


@pytest.fixture
def natsctl(in_process: InProcess) -> InProcess:
    return in_process


@pytest.fixture
async def shops(jetstream: JetStreamContext) -> KeyValue:
    return await jetstream.create_key_value(KeyValueConfig(bucket="shops", history=20))


async def document(shops: KeyValue) -> dict[str, Any]:
    return dict(json.loads((await shops.get("a")).value or b"{}"))


async def edit(shops: KeyValue, **parts: Any) -> int:
    """Change parts of the stored object as a controller does, and return the revision."""
    stored = await document(shops)
    metadata = {**stored["metadata"], **parts.pop("metadata", {})}
    return await shops.put("a", json.dumps({**stored, **parts, "metadata": metadata}).encode())


async def test_changes_shows_only_changes_of_the_desired_state(
    natsctl: InProcess, shops: KeyValue
) -> None:
    await natsctl.done("put", "shops", "a", '{"spec": {"text": "one"}}')
    link = {"natsctl.io/external-name": "x"}
    await edit(shops, metadata={"annotations": link, "finalizers": ["natsctl.io/managed"]})
    await edit(shops, status={"ready": True})
    await natsctl.done("put", "shops", "a", '{"spec": {"text": "two"}}')
    await edit(shops, metadata={"labels": {"tier": "gold"}})
    await edit(shops, metadata={"annotations": {**link, "mine": "1"}})
    await edit(shops, metadata={"annotations": {**link, "mine": "1", "natsctl.io/paused": "true"}})
    await natsctl.done("delete", "shops", "a")
    await edit(shops, status={"ready": False})
    await shops.delete("a")
    full_history = await natsctl("history", "shops", "a", "-o", "name")
    shown = await natsctl("history", "shops", "a", "--changes", "-o", "name")
    assert full_history.out.split() == [str(number) for number in range(1, 11)]
    assert shown.out.split() == ["1", "4", "5", "6", "7", "8", "10"]
    table = (await natsctl("history", "shops", "a", "--changes")).out
    *_, changed, value = table.splitlines()[0].split()
    assert (changed, value) == ("CHANGED", "VALUE")
    begin, end = table.index("CHANGED"), table.index("VALUE")
    shown_fields = [line[begin:end].strip() for line in table.splitlines()[1:]]
    assert shown_fields == [
        *("-", "spec.text", "labels.tier", "annotations.mine", "paused", "marked deleted"),
        "-",
    ]


async def test_rollback_restores_the_desired_state_and_keeps_status_and_links(
    natsctl: InProcess, shops: KeyValue
) -> None:
    first = {
        "metadata": {"labels": {"v": "1"}, "annotations": {"mine": "1"}},
        "spec": {"text": "one"},
    }
    await natsctl.done("put", "shops", "a", json.dumps(first))
    link = {"natsctl.io/external-name": "x", "krateo.io/external-create-failed": "y"}
    await edit(shops, metadata={"annotations": link, "finalizers": ["f"]}, status={"n": 1})
    await natsctl.done("put", "shops", "a", '{"spec": {"text": "two"}}')
    before = await document(shops)
    out = await natsctl.done("rollback", "shops", "a", "--to", "1")
    assert out == "shops/a configured at revision 4, as it was at revision 1\n"
    stored = await document(shops)
    assert (stored["spec"], stored["metadata"]["labels"]) == ({"text": "one"}, {"v": "1"})
    assert stored["metadata"]["annotations"] == {"mine": "1", **link}
    assert stored["status"] == {"n": 1}
    for name in ("uid", "finalizers"):
        assert stored["metadata"][name] == before["metadata"][name]
    assert stored["metadata"]["generation"] == before["metadata"]["generation"] + 1


async def test_rollback_needs_the_bucket_of_the_key(natsctl: InProcess, shops: KeyValue) -> None:
    for text in ("one", "two"):
        await natsctl.done("put", "shops/a", json.dumps({"spec": {"text": text}}))
    alone = await natsctl("rollback", "a", "--to", "1")
    assert (alone.status, "write BUCKET/KEY, or BUCKET KEY" in alone.err) == (2, True)
    assert (await document(shops))["spec"] == {"text": "two"}
    await natsctl.done("rollback", "shops/a", "--to", "1")
    assert (await document(shops))["spec"] == {"text": "one"}


async def test_an_impossible_rollback_reports_the_reason(
    natsctl: InProcess, shops: KeyValue
) -> None:
    await natsctl.done("put", "shops", "a", '{"spec": {"text": "one"}}')
    await shops.put("a", b'{"spec": {"text": ')
    await shops.put("a", b'{"metadata": {"labels": 5}, "spec": {}}')
    await shops.delete("a")
    await natsctl.done("put", "shops", "a", '{"spec": {"text": "one"}}')
    for to, status, error in (
        ("1", 2, "revision 1 has the desired state that shops/a has now, at revision 5"),
        ("2", 2, "revision 2 of shops/a is not a valid object"),
        ("3", 2, "revision 3 of shops/a is not a valid object"),
        ("4", 2, "revision 4 of shops/a is a deletion"),
        ("9", 3, "has no revision 9, or not any more: it has 1, 2, 3, 4, 5"),
    ):
        result = await natsctl("rollback", "shops", "a", "--to", to)
        assert (to, result.status, error in result.err) == (to, status, True), result.err
    assert (await shops.get("a")).revision == 5


async def test_rollback_recreates_a_deleted_object(natsctl: InProcess, shops: KeyValue) -> None:
    await natsctl.done("put", "shops", "a", '{"spec": {"text": "one"}}')
    await natsctl.done("delete", "shops", "a")
    out = await natsctl.done("rollback", "shops", "a", "--to", "1")
    assert out == "shops/a created at revision 3, as it was at revision 1\n"
    assert (await document(shops))["spec"] == {"text": "one"}
