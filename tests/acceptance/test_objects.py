"""The commands that read and change the objects of buckets."""

import json
from pathlib import Path

import pytest
import yaml
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig

from tests.support.cli.natsctl_command import InProcess, Natsctl
from tests.support.servers.nats_server import NatsServer


@pytest.fixture
async def greetings(jetstream: JetStreamContext) -> JetStreamContext:
    """Create the bucket with a plain NATS client."""
    await jetstream.create_key_value(KeyValueConfig(bucket="greetings", history=5))
    return jetstream


@pytest.mark.usefixtures("greetings")
async def test_put_get_history_and_delete_handle_one_object(natsctl: Natsctl) -> None:
    spec = '{"spec": {"text": "hi"}}'
    assert await natsctl.done("put", "greetings", "shop", spec) == (
        "greetings/shop created at revision 1\n"
    )
    assert "unchanged at revision 1" in await natsctl.done("put", "greetings", "shop", spec)
    changed = await natsctl.done("put", "greetings", "shop", "-", stdin="spec: {text: ho}")
    assert "configured at revision 2" in changed
    shown = await natsctl("get", "greetings", "shop")
    assert shown.rows[0][:4] == ["shop", "2", "2", "-"]
    described = (await natsctl("get", "greetings", "shop", "-o", "json")).json
    assert described["spec"] == {"text": "ho"}
    assert described["metadata"]["generation"] == 2
    assert await natsctl.done("get", "greetings", "shop", "-o", "name") == "greetings/shop\n"
    assert await natsctl.done("delete", "greetings", "shop") == "greetings/shop deleted\n"
    deleted = await natsctl("get", "greetings", "shop")
    assert deleted.status == 3
    assert "greetings has no shop: it was deleted at revision 3" in deleted.err
    history = await natsctl("history", "greetings", "shop")
    assert [row[:3] for row in history.rows] == [
        ["1", "put", "1"],
        ["2", "put", "2"],
        ["3", "deleted", "-"],
    ]


async def test_apply_keeps_unknown_fields_of_other_clients(
    natsctl: Natsctl, greetings: JetStreamContext
) -> None:
    bucket = await greetings.key_value("greetings")
    foreign = {
        "metadata": {"finalizers": ["x/y"], "generation": 4, "uid": "u", "labels": {"a": "b"}},
        "spec": {"text": "hi", "theirs": [1]},
        "status": {"ready": True},
        "other": {"deep": 1},
    }
    await bucket.put("shop", json.dumps(foreign).encode())
    manifest = "{bucket: greetings, key: shop, metadata: {labels: {c: d}}, spec: {text: ho}}"
    await natsctl.done("apply", "-f", "-", stdin=manifest)
    assert json.loads((await bucket.get("shop")).value or b"") == {
        **foreign,
        "metadata": {**foreign["metadata"], "generation": 5, "labels": {"a": "b", "c": "d"}},  # type: ignore[dict-item]
        "spec": {"text": "ho"},
    }


async def test_values_that_are_not_objects_are_shown_and_restored_unchanged(
    natsctl: Natsctl, greetings: JetStreamContext
) -> None:
    bucket = await greetings.key_value("greetings")
    await bucket.put("text", b"two\nlines")
    await bucket.put("bytes", b"\xff\x00")
    await bucket.put("json", b'{"a": [1]}')
    assert await natsctl.done("get", "greetings", "text") == "two\nlines"
    assert (await natsctl("get", "greetings", "json", "-o", "json")).json["value"] == {"a": [1]}
    listed = await natsctl("get", "greetings")
    assert [row[0] for row in listed.rows] == ["bytes", "json", "text"]
    assert listed.rows[0][-2:] == ["(2", "bytes)"]
    manifests = await natsctl.done("get", "greetings", "-o", "yaml")
    await natsctl.done("delete", "greetings", "text", "bytes", "json")
    await natsctl.done("apply", "-f", "-", stdin=manifests)
    assert (await bucket.get("text")).value == b"two\nlines"
    assert (await bucket.get("bytes")).value == b"\xff\x00"
    assert json.loads((await bucket.get("json")).value or b"") == {"a": [1]}
    refused = await natsctl("put", "greetings", "a..b", "x")
    assert (refused.status, refused.err.count("\n")) == (2, 1)


@pytest.mark.usefixtures("greetings")
async def test_only_put_raw_replaces_an_object_with_another_value(natsctl: Natsctl) -> None:
    words = ("put", "greetings", "shop")
    await natsctl.done(*words, '{"spec": {"text": "hi"}}')
    refused = await natsctl(*words, "closed")
    assert (refused.status, "replace the object with natsctl put --raw" in refused.err) == (2, True)
    assert await natsctl.done(*words, "closed", "--raw") == (
        "greetings/shop configured at revision 2\n"
    )
    assert await natsctl.done("get", "greetings", "shop") == "closed"
    mistyped = await natsctl(*words, '{"spec": {"text": "ho"}')
    assert (mistyped.status, mistyped.err.count("\n")) == (2, 1)
    await natsctl.done(*words, '{"spec": {"text": "ho"}', "--raw")
    assert await natsctl.done("get", "greetings", "shop") == '{"spec": {"text": "ho"}'
    await natsctl.done(*words, '{"metadata": {"generation": 7}, "spec": 1}', "--raw")
    assert (await natsctl("get", "greetings", "shop", "-o", "json")).json["metadata"] == {
        "generation": 7
    }


@pytest.mark.usefixtures("greetings")
async def test_a_failed_compare_and_set_ends_with_status_4(natsctl: Natsctl) -> None:
    await natsctl.done("put", "greetings", "shop", "spec: {a: 1}", "--create")
    second = await natsctl("put", "greetings", "shop", "spec: {a: 2}", "--create")
    assert (second.status, second.err) == (4, "natsctl: error: shop exists in greetings\n")
    await natsctl.done("put", "greetings", "shop", "spec: {a: 2}", "--revision", "1")
    late = await natsctl("put", "greetings", "shop", "spec: {a: 3}", "--revision", "1")
    assert (late.status, late.err) == (
        4,
        "natsctl: error: shop is at revision 2, not at 1\n",
    )


@pytest.mark.usefixtures("greetings")
async def test_a_missing_bucket_or_key_suggests_a_similar_name_and_ends_with_status_3(
    natsctl: Natsctl,
) -> None:
    await natsctl.done("put", "greetings", "shop", "spec: {}")
    wrong_bucket = await natsctl("get", "greetngs", "shop")
    assert (wrong_bucket.status, wrong_bucket.err) == (
        3,
        "natsctl: error: there is no bucket greetngs; did you mean greetings?\n",
    )
    wrong_key = await natsctl("get", "greetings", "shpo")
    assert (wrong_key.status, wrong_key.err) == (
        3,
        "natsctl: error: greetings has no shpo; did you mean shop?\n",
    )
    assert (await natsctl("history", "greetings", "nobody")).status == 3
    assert (await natsctl("delete", "greetings", "nobody")).status == 3


async def test_only_create_bucket_creates_a_bucket(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    for words in (
        ["put", "new", "a", "x"],
        ["get", "new"],
        ["get", "-w", "new"],
        ["delete", "new", "a"],
    ):
        refused = await natsctl(*words)
        assert refused.status == 3
        hint = "; --create-bucket creates it" if "put" in words else ""
        assert refused.err == (
            f"natsctl: error: there is no bucket new: there are no buckets yet{hint}\n"
        )
    await natsctl.done("put", "new", "a", "x", "--create-bucket")
    assert (await (await jetstream.key_value("new")).get("a")).value == b"x"
    await natsctl.done("delete", "new", "a")
    empty = await natsctl("get", "new")
    assert (empty.status, empty.out, empty.err) == (0, "", "bucket new is empty\n")
    assert (await natsctl("get", "new", "-o", "json")).json == []


@pytest.mark.usefixtures("greetings")
async def test_list_filters_by_labels_and_keys(natsctl: Natsctl) -> None:
    await natsctl.done(
        "apply",
        "-f",
        "-",
        stdin="""
        - {bucket: greetings, key: eu.a, metadata: {labels: {tier: edge}}, spec: {}}
        - {bucket: greetings, key: eu.b, metadata: {labels: {tier: hub}}, spec: {}}
        - {bucket: greetings, key: us.a, metadata: {labels: {tier: edge, old: 'yes'}}, spec: {}}
        - {bucket: greetings, key: us.b, value: text}
        """,
    )

    async def names(*words: str) -> list[str]:
        listed = await natsctl.done("get", "greetings", "-o", "name", *words)
        return [name.removeprefix("greetings/") for name in listed.split()]

    assert await names() == ["eu.a", "eu.b", "us.a", "us.b"]
    assert await names("-l", "tier=edge,!old") == ["eu.a"]
    assert await names("--keys", "eu.*") == ["eu.a", "eu.b"]
    assert await names("--keys", "*.a", "-l", "tier in (edge,hub)") == ["eu.a", "us.a"]
    listed = await natsctl("get", "greetings", "-l", "tier=none")
    assert (listed.status, listed.err) == (0, "nothing in bucket greetings matches\n")


async def test_an_invalid_manifest_stops_apply_of_its_whole_folder(
    natsctl: Natsctl, folder: Path
) -> None:
    manifests = folder / "manifests"
    manifests.mkdir()
    (manifests / "a.yaml").write_text("bucket: b\nkey: one\nspec: {x: 1}\n")
    (manifests / "b.json").write_text('{"bucket": "b", "key": "two", "spce": 1}')
    wrong = await natsctl("apply", "-f", "manifests", "--create-bucket")
    assert (wrong.status, wrong.err) == (
        2,
        "natsctl: error: manifests/b.json, document 1: it has no spec, and no value either\n",
    )
    (manifests / "b.json").write_text('{"bucket": "b", "key": "two", "spec": {"x": 2}}')
    first = await natsctl.done("apply", "-f", "manifests", "--create-bucket")
    assert first == "b/one created at revision 1\nb/two created at revision 2\n"
    (manifests / "a.yaml").write_text("bucket: b\nkey: one\nspec: {x: 9}\n")
    second = await natsctl.done("apply", "-f", "manifests")
    assert second == "b/one configured at revision 3\nb/two unchanged at revision 2\n"


@pytest.mark.usefixtures("greetings")
async def test_apply_continues_after_a_document_that_cannot_be_stored(natsctl: Natsctl) -> None:
    await natsctl.done("put", "greetings", "a", "spec: {}")
    result = await natsctl(
        "apply",
        "-f",
        "-",
        stdin="- {bucket: greetings, key: a, value: text}\n- {bucket: greetings, key: b, spec: {}}",
    )
    assert result.status == 2
    assert result.err.startswith("natsctl: error: greetings/a: a is an object")
    assert result.out == "greetings/b created at revision 2\n"


async def test_finalizers_delay_a_deletion_until_they_are_removed(
    natsctl: Natsctl, greetings: JetStreamContext
) -> None:
    bucket = await greetings.key_value("greetings")
    held = {"metadata": {"finalizers": ["x/y", "z"]}, "spec": {}}
    await bucket.put("shop", json.dumps(held).encode())
    marked = await natsctl.done("delete", "greetings", "shop")
    assert marked == "greetings/shop marked deleted, held by x/y, z\n"
    late = await natsctl("delete", "greetings", "shop", "--wait-timeout", "0.1")
    assert late.status == 1
    assert "shop of greetings not deleted within 100ms" in late.err
    assert (await natsctl("get", "greetings", "shop")).rows[0][3] == "Deleting"
    async with natsctl.running("delete", "greetings", "shop", "--wait") as waiting:
        await waiting.logged("held by x/y, z")
        await bucket.delete("shop")
        assert await waiting.ends() == 0


@pytest.mark.usefixtures("greetings")
async def test_delete_all_needs_confirmation(natsctl: Natsctl) -> None:
    await natsctl.done("put", "greetings", "a", "x")
    await natsctl.done("put", "greetings", "b", "spec: {}")
    refused = await natsctl("delete", "greetings", "--all")
    assert refused.status == 2
    assert "Delete all 2 keys of greetings?" in refused.err
    assert "--yes" in refused.err
    assert len((await natsctl("get", "greetings")).rows) == 2
    done = await natsctl.done("delete", "greetings", "--all", "--yes", "--wait")
    assert done == "greetings/a deleted\ngreetings/b deleted\n"
    assert (await natsctl("get", "greetings", "-o", "json")).json == []


async def test_a_watch_shows_existing_objects_and_every_change(
    natsctl: Natsctl, greetings: JetStreamContext
) -> None:
    bucket = await greetings.key_value("greetings")
    await bucket.put("a", b'{"spec": 1}')
    async with natsctl.running("get", "-w", "greetings", "-o", "json") as watching:
        await watching.logged("\n", times=1)
        await bucket.put("b", b"text")
        await bucket.put("a", b'{"spec": 2}')
        await bucket.delete("b")
        await watching.logged("\n", times=4)
        lines = [json.loads(line) for line in watching.log.splitlines()]
    assert [(event["event"], event["key"], event["revision"]) for event in lines] == [
        ("added", "a", 1),
        ("added", "b", 2),
        ("updated", "a", 3),
        ("deleted", "b", 2),
    ]
    assert lines[2]["spec"] == 2
    once = await natsctl("get", "-w", "greetings", "--once")
    assert once.out.splitlines()[0].split() == [
        "EVENT",
        "KEY",
        "REVISION",
        "GENERATION",
        "READY",
        "AGE",
    ]
    assert once.rows[0][:3] == ["ADDED", "a", "3"]
    assert len(once.rows) == 1


async def test_a_watch_shows_a_label_that_no_longer_matches_as_a_deletion(
    natsctl: Natsctl, greetings: JetStreamContext
) -> None:
    bucket = await greetings.key_value("greetings")
    await bucket.put("a", b'{"metadata": {"labels": {"x": "1"}}}')
    await bucket.put("b", b'{"metadata": {"labels": {"x": "2"}}}')
    async with natsctl.running("get", "-w", "greetings", "-l", "x=1", "-o", "json") as watching:
        await watching.logged("\n")
        await bucket.put("a", b'{"metadata": {"labels": {"x": "2"}}}')
        await watching.logged("\n", times=2)
        events = [
            (lines["event"], lines["key"]) for lines in map(json.loads, watching.log.splitlines())
        ]
    assert events == [("added", "a"), ("deleted", "a")]


@pytest.mark.usefixtures("greetings")
async def test_a_closed_pipe_ends_a_command_without_an_error(
    natsctl: Natsctl, folder: Path
) -> None:
    # 1.5 MB: more than the pipe and the reader take before the reader is closed
    documents = "\n".join(
        f"- {{bucket: greetings, key: k{n}, value: {'x' * 5000}}}" for n in range(300)
    )
    await natsctl.done("apply", "-f", "-", stdin=documents)
    async with natsctl.piped("get", "greetings", "-o", "yaml") as (reader, process):
        await reader.readline()
    assert await process.wait() == 141
    assert (folder / "piped.err").read_text() == ""


async def test_the_error_names_a_server_that_cannot_be_reached(natsctl: Natsctl) -> None:
    result = await natsctl("get", "greetings", "-s", "nats://127.0.0.1:1", "--timeout", "1")
    assert result.status == 1
    assert result.err.startswith("natsctl: error: cannot connect to NATS: nats://127.0.0.1:1")
    assert result.err.count("\n") == 1


async def test_credentials_come_from_options_or_the_environment_and_are_never_shown(
    folder: Path, tmp_path: Path
) -> None:
    users = "authorization { user: ann, password: hush }"
    async with NatsServer(tmp_path / "closed", config=users) as server:
        words = ("put", "b", "a", "x", "--create-bucket", "-s", server.url, "--user", "ann")
        natsctl = Natsctl(folder)
        assert (await natsctl(*words)).status == 2
        assert (await natsctl(*words, "--password", "hush")).status == 0
        for wrong in (await natsctl(*words, "--password", "loud"), await natsctl(*words[:-2])):
            assert wrong.status == 1
            assert wrong.err.count("\n") == 1
            assert "the server refuses" in wrong.err
            assert "loud" not in wrong.err
        by_url = Natsctl(folder, server.url.replace("//", "//ann:hush@"))
        assert await by_url.done("get", "b", "a") == "x"


@pytest.mark.usefixtures("greetings")
async def test_put_reports_the_fields_that_it_does_not_store(in_process: InProcess) -> None:
    value = json.dumps(
        {"metadata": {"finalizers": ["x/y"]}, "spec": {"a": 1}, "status": {"ready": True}}
    )
    created = await in_process("put", "greetings", "shop", value)
    assert created.out == "greetings/shop created at revision 1\n"
    assert created.err == (
        "greetings/shop: metadata.finalizers and status not stored: "
        "natsctl put --raw stores a value exactly as given\n"
    )
    stored = (await in_process("get", "greetings", "shop", "-o", "json")).json
    assert "status" not in stored
    assert "finalizers" not in stored["metadata"]


@pytest.mark.usefixtures("greetings")
async def test_put_raw_stores_finalizers_and_status(
    in_process: InProcess, greetings: JetStreamContext
) -> None:
    value = '{"metadata": {"finalizers": ["x/y"]}, "spec": 1, "status": {"ready": true}}'
    created = await in_process("put", "greetings", "shop", value, "--raw")
    assert (created.status, created.err) == (0, "")
    bucket = await greetings.key_value("greetings")
    assert (await bucket.get("shop")).value == value.encode()


@pytest.mark.usefixtures("greetings")
async def test_apply_of_listed_output_ignores_no_field(in_process: InProcess, folder: Path) -> None:
    value = '{"metadata": {"finalizers": ["x/y"]}, "spec": {"a": 1}, "status": {"ready": true}}'
    await in_process("put", "greetings", "shop", value, "--raw")
    (folder / "shop.yaml").write_text((await in_process("get", "greetings", "-o", "yaml")).out)
    applied = await in_process("apply", "-f", str(folder / "shop.yaml"))
    assert (applied.status, applied.err) == (0, "")


@pytest.mark.usefixtures("greetings")
async def test_json_output_rounds_no_number(in_process: InProcess) -> None:
    exact = '"n": 12345678901234567890.5'
    await in_process("put", "greetings", "shop", f'{{"spec": {{{exact}}}}}', "--raw")
    for words in (["get", "greetings", "shop"], ["get", "greetings"]):
        assert exact in (await in_process(*words, "-o", "json")).out


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml", "name"])
@pytest.mark.usefixtures("greetings")
async def test_many_objects_are_written_as_they_come_each_once(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    keys = [f"shop-{number}" for number in range(12)]
    for key in reversed(keys):
        await in_process.done("put", "greetings", key, f"spec: {{text: {key}}}")
    sorted_ = await in_process.done("get", "greetings", "-o", output)
    monkeypatch.setattr("natsctl.cli.get.SORTED_MAX", 11)
    streamed = await in_process.done("get", "greetings", "-o", output)
    if output == "json":
        sorted_keys, keys_streamed = (
            [entry["key"] for entry in json.loads(text)] for text in (sorted_, streamed)
        )
        assert keys_streamed == keys[::-1]
        assert sorted_keys == sorted(keys)
        again = sorted(json.loads(streamed), key=lambda entry: str(entry["key"]))
        assert again == json.loads(sorted_)
    elif output == "yaml":
        entries = list(yaml.safe_load_all(streamed))
        assert [entry["key"] for entry in entries] == keys[::-1]
    else:
        lines = [line.split()[0].removeprefix("greetings/") for line in streamed.splitlines()]
        assert [line for line in lines if line != "KEY"] == keys[::-1]
    assert await in_process.done("get", "greetings", "-l", "no=such", "-o", "json") == "[]\n"
