"""Contexts of the nats CLI are loaded, or rejected with the name of the file."""

import json
from pathlib import Path

import pytest

from natsctl import NatsOptions
from natsctl.errors import UsageError
from natsctl.jetstream.options import load_context, with_context


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    return folder


def save(folder: Path, name: str, **context: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"description": "", "url": ""} | context))


def test_every_context_field_sets_its_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    save(
        folder,
        "edge",
        url="nats://one,nats://two",
        user="ann",
        password="s3cret",
        token="s3cret2",
        creds="~/a.creds",
        nkey="$HOME/a.nk",
        cert="/c.pem",
        key="/k.pem",
        ca="/ca.pem",
        tls_first=True,
        jetstream_domain="edge",
        inbox_prefix="_MINE",
        color_scheme="bright",
    )
    assert load_context("edge") == NatsOptions(
        servers=("nats://one,nats://two",),
        user="ann",
        password="s3cret",
        token="s3cret2",
        creds="/home/ann/a.creds",
        nkey="/home/ann/a.nk",
        tls_cert="/c.pem",
        tls_key="/k.pem",
        tls_ca="/ca.pem",
        tls_first=True,
        domain="edge",
        inbox_prefix="_MINE",
    )


def test_an_empty_context_sets_no_option(folder: Path) -> None:
    save(folder, "empty", user="", jetstream_api_prefix="")
    assert load_context("empty") == NatsOptions()


def test_an_api_prefix_overrides_a_domain(folder: Path) -> None:
    save(folder, "edge", jetstream_domain="edge", jetstream_api_prefix="hub.API")
    assert load_context("edge").prefix == "hub.API"


def test_the_selected_context_is_the_default(folder: Path) -> None:
    save(folder, "edge", url="nats://one")
    (folder.parent / "context.txt").write_text("edge\n")
    assert load_context().servers == ("nats://one",)


def test_without_a_selected_context_the_error_names_the_select_command(folder: Path) -> None:
    with pytest.raises(UsageError, match=f"{folder.parent / 'context.txt'}.*nats context select"):
        load_context()


def test_options_without_a_context_are_unchanged() -> None:
    options = NatsOptions(servers=("nats://one",))
    assert with_context(options) is options


def test_given_options_override_the_context(folder: Path) -> None:
    save(folder, "edge", url="nats://one", token="s3cret", ca="/ca.pem")
    options = with_context(NatsOptions(context="edge", creds="a.creds"))
    assert (options.servers, options.creds, options.token) == (("nats://one",), "a.creds", None)
    assert options.tls_ca == "/ca.pem"


def test_the_error_of_an_unknown_name_lists_the_nearest_contexts_first(folder: Path) -> None:
    for name in ("alpha", "production", "prod-eu", "zeta"):
        save(folder, name)
    with pytest.raises(UsageError) as caught:
        load_context("prod")
    assert f"there is no {folder / 'prod.json'}; the contexts are prod-eu, production" in str(
        caught.value
    )


def test_without_any_context_the_error_states_that(folder: Path) -> None:
    with pytest.raises(UsageError, match=f"{folder / 'edge.json'}, and no other context"):
        load_context("edge")


@pytest.mark.parametrize("text", ['{"password": "s3cret"', '{"password": ["s3cret"]}', "\xff"])
def test_the_error_of_a_damaged_context_names_the_file_without_its_content(
    folder: Path, text: str
) -> None:
    (folder / "edge.json").write_text(text, "latin-1")
    with pytest.raises(UsageError, match=r"edge\.json is not a valid context in JSON") as caught:
        load_context("edge")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("field", ["nsc", "user_jwt", "socks_proxy"])
def test_an_unsupported_context_field_is_rejected(folder: Path, field: str) -> None:
    save(folder, "edge", **{field: "something"})
    refused = rf"edge\.json uses {field}, which natsctl does not support"
    with pytest.raises(UsageError, match=refused):
        load_context("edge")
