"""natsctl connects as the `nats` command does: by the selected context and the same variables."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.natsctl_command import Natsctl
from tests.support.servers.nats_server import NatsServer

HUB = {"url": "nats://hub", "token": "hush-hub", "jetstream_domain": "hub"}
EDGE = {"url": "nats://edge", "creds": "/edge.creds"}
LOGIN = ("creds", "nkey", "user", "password", "token")


def save_contexts(home: Path, *, selected: str = "", **contexts: dict[str, Any] | str) -> None:
    """Write contexts as `nats context save` and `nats context select` do."""
    folder = home / ".config" / "nats" / "context"
    folder.mkdir(parents=True)
    for name, context in contexts.items():
        text = context if isinstance(context, str) else json.dumps(context)
        (folder / f"{name}.json").write_text(text)
    if selected:
        (folder.parent / "context.txt").write_text(selected)


async def connection(natsctl: Natsctl, *words: str) -> dict[str, tuple[str, str]]:
    """Return the value and the source of each option of the connection that isn't a default."""
    shown = json.loads(await natsctl.done("config", *words, "-o", "json"))
    return {
        entry["setting"].removeprefix("nats."): (str(entry["value"]), entry["source"])
        for entry in shown
        if entry["setting"].startswith("nats.") and entry["source"] != "default"
    }


async def test_commands_use_the_selected_context(folder: Path, nats_server: NatsServer) -> None:
    save_contexts(folder, selected="lab", lab={"url": nats_server.url}, hub=HUB)
    natsctl = Natsctl(folder)
    await natsctl.done("put", "shops/a", "spec: {}", "--create-bucket")
    there = Natsctl(folder.parent, nats_server.url)
    assert (await there.done("get", "shops/a", "-o", "name")) == "shops/a\n"
    assert await connection(natsctl) == {
        "context": ("lab", "nats context select"),
        "servers": (f"['{nats_server.url}']", "context lab"),
    }


@pytest.mark.parametrize(
    ("environ", "flags", "expected"),
    [
        ({}, [], {"context": "nats context select", "servers": "context hub"}),
        ({"NATS_CONTEXT": "edge"}, [], {"context": "NATS_CONTEXT", "creds": "context edge"}),
        (
            {"NATS_CONTEXT": "edge", "NATSCTL_CONTEXT": "hub"},
            [],
            {"context": "NATSCTL_CONTEXT", "token": "context hub"},
        ),
        ({"NATS_CONTEXT": "hub"}, ["--context", "edge"], {"context": "--context"}),
        (
            {"NATS_URL": "nats://other"},
            [],
            {"servers": "NATS_URL", "token": "context hub", "domain": "context hub"},
        ),
        ({"NATS_CREDS": "/a.creds"}, [], {"creds": "NATS_CREDS", "servers": "context hub"}),
        ({"NATS_NKEY": "/a.nk"}, [], {"nkey": "NATS_NKEY", "servers": "context hub"}),
        ({"NATS_TOKEN": "t"}, [], {"token": "NATS_TOKEN", "servers": "context hub"}),
        (
            {"NATS_USER": "ann", "NATS_PASSWORD": "p"},
            [],
            {"user": "NATS_USER", "password": "NATS_PASSWORD"},
        ),
        ({"NATS_USER": "a-token"}, [], {"token": "NATS_USER"}),
        (
            {"NATS_USER": "ann"},
            ["--password", "p"],
            {"user": "NATS_USER", "password": "--password"},
        ),
        (
            {"NATS_CREDS": "/theirs", "NATSCTL_TOKEN": "ours"},
            [],
            {"token": "NATSCTL_TOKEN", "servers": "context hub"},
        ),
        (
            {"NATS_CA": "/ca", "NATS_CERT": "/cert", "NATS_KEY": "/key"},
            [],
            {"tls_ca": "NATS_CA", "tls_cert": "NATS_CERT", "tls_key": "NATS_KEY"},
        ),
    ],
)
async def test_flags_override_variables_and_these_the_selected_context(
    folder: Path, environ: dict[str, str], flags: list[str], expected: dict[str, str]
) -> None:
    save_contexts(folder, selected="hub", hub=HUB, edge=EDGE)
    shown = await connection(Natsctl(folder, environ=environ), *flags)
    sources = {name: source for name, (_, source) in shown.items()}
    assert sources | expected == sources
    logins = {name for name in LOGIN if name in shown}
    assert logins <= (expected.keys() | {"token", "creds"})
    assert len({"creds", "nkey", "user", "token"} & logins) == 1
    assert "hush" not in str(shown)


async def test_the_settings_file_overrides_the_selected_context(folder: Path) -> None:
    save_contexts(folder, selected="hub", hub=HUB)
    (folder / "natsctl.toml").write_text("[nats]\nservers = 'nats://file'\n")
    shown = await connection(Natsctl(folder))
    assert shown["servers"] == ("['nats://file']", "natsctl.toml")
    assert shown["token"] == ("***", "context hub")


async def test_a_broken_selection_is_named_unless_nothing_of_it_is_needed(folder: Path) -> None:
    save_contexts(folder, selected="gone", operator={"url": "nats://a", "nsc": "nsc://o/a/u"})
    for words in (["get", "shops"], ["get", "shops", "-s", "nats://127.0.0.1:1"]):
        refused = await Natsctl(folder)(*words)
        assert (refused.status, "NATS context 'gone' is unknown" in refused.err) == (2, True)
    needless = ("-s", "nats://127.0.0.1:1", "--token", "t", "--timeout", "0.2")
    assert "NATS context" not in (await Natsctl(folder)("list", "shops", *needless)).err


async def test_a_private_server_needs_no_context(folder: Path) -> None:
    save_contexts(folder, selected="hub", hub=HUB)
    natsctl = Natsctl(folder)
    async with natsctl.running("run", "--embedded", "-c", "controllers.greetings:Greetings") as run:
        await run.logged("primaries listed, syncing")
    refused = await natsctl("run", "--embedded", "-c", "a:B", "--context", "hub")
    assert "--context names another server" in refused.err
