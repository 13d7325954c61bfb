"""A command has the settings of its flags, the environment and a settings file."""

from pathlib import Path

import pytest
import typer
from typer.main import get_command

from natsctl.cli.command import App, settings, typed_options
from natsctl.daemon.settings.load import Effective, load_settings
from natsctl.daemon.settings.settings import Settings


def called(*typed: str) -> tuple[Effective, str]:
    """Return the settings and the argument that a command sees."""
    received: list[tuple[Effective, str]] = []
    app = App()

    @app.add(settings=("controllers.workers",))
    def command(*, name: str) -> None:
        received.append((settings(), name))

    get_command(app).main(list(typed), standalone_mode=False)
    return received[0]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_command_sees_the_settings_of_its_flags_and_the_connection() -> None:
    effective, name = called("x", "--workers", "3", "--no-kube", "-s", "a")
    assert name == "x"
    assert effective.settings.nats.servers == ("a",)
    assert effective.settings.controllers.workers == 3
    assert effective.settings.cluster is None


def test_a_command_has_only_the_declared_flags() -> None:
    with pytest.raises(typer.TyperException, match="--resync"):
        called("x", "--resync", "3")


def test_a_command_sees_the_settings_of_a_file() -> None:
    Path("mine.toml").write_text("[controllers]\nworkers = 7")
    effective, _ = called("x", "--config", "mine.toml")
    assert effective.settings == load_settings({}, {"NATSCTL_WORKERS": "7"}).settings


def test_typed_options_repeats_the_typed_flags_without_secrets() -> None:
    Path("mine.toml").write_text("[controllers]\nresync_s = 7")
    typed = {"workers": "3", "no_kube": True, "server": "a,b", "log_level": "debug"}
    effective = load_settings(typed, {"NATSCTL_TOKEN": "hush"}, config="mine.toml")  # type: ignore[arg-type]
    words = typed_options(effective)
    assert words[:2] == ["--config", "mine.toml"]
    assert "hush" not in words
    pairs = ["--server", "a,b", "--no-kube", "--workers", "3", "--log-level", "debug"]
    assert sorted(words[2:]) == sorted(pairs)
    assert words[words.index("--workers") + 1] == "3"
    assert typed_options(load_settings({}, {}, config=None)) == []
    assert Settings() == load_settings({}, {}).settings
