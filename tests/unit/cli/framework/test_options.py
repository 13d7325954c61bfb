"""A command is handed what its flags, the environment and a file come to."""

from pathlib import Path

import pytest
import typer
from typer.main import get_command

from natsctl.cli.framework.options import typed_options, with_cluster, with_options
from natsctl.daemon.settings.load import Effective, load_settings
from natsctl.daemon.settings.settings import Settings


def called(*typed: str) -> tuple[Effective, bool, str]:
    """Return what a command is handed by two decorators, and its own argument."""
    found: list[tuple[Effective, bool, str]] = []
    app = typer.Typer()

    @app.command()
    @with_cluster
    @with_options("effective", "nats", "controllers.workers", value=lambda effective: effective)
    def command(*, effective: Effective, cluster: object, name: str) -> None:
        found.append((effective, cluster is None, name))

    get_command(app).main(list(typed), standalone_mode=False)
    return found[0]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_decorators_hand_their_parts_of_the_same_settings() -> None:
    effective, no_cluster, name = called("x", "--workers", "3", "--no-kube", "-s", "a")
    assert (no_cluster, name) == (True, "x")
    assert effective.settings.nats.servers == ("a",)
    assert effective.settings.controllers.workers == 3
    assert not effective.settings.kube.enabled


def test_a_command_has_the_flags_that_it_asks_for_and_no_others() -> None:
    with pytest.raises(typer.TyperException, match="--resync"):
        called("x", "--resync", "3")


def test_a_command_is_told_of_a_file() -> None:
    Path("mine.toml").write_text("[controllers]\nworkers = 7")
    effective, *_ = called("x", "--config", "mine.toml")
    assert effective.settings == load_settings({}, {"NATSCTL_WORKERS": "7"}).settings


def test_the_words_for_another_process_are_those_that_were_typed() -> None:
    Path("mine.toml").write_text("[controllers]\nresync_s = 7")
    typed = {"workers": "3", "no_kube": True, "server": "a,b", "log_level": "debug"}
    found = load_settings(typed, {"NATSCTL_TOKEN": "hush"}, config="mine.toml")  # type: ignore[arg-type]
    told = typed_options(found)
    assert told[:2] == ["--config", "mine.toml"]
    assert "hush" not in told
    pairs = ["--server", "a,b", "--no-kube", "--workers", "3", "--log-level", "debug"]
    assert sorted(told[2:]) == sorted(pairs)
    assert told[told.index("--workers") + 1] == "3"
    assert typed_options(load_settings({}, {}, config=None)) == []
    assert Settings() == load_settings({}, {}).settings
