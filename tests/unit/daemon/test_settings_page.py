"""The settings page of the documentation matches the settings."""

import re
import tomllib
from pathlib import Path

import pytest

from natsctl import Controller
from natsctl.daemon.settings.load import load_settings
from natsctl.daemon.settings.settings import BY_NAME, SETTINGS, Setting
from natsctl.errors import UsageError

PAGE = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
CELL = r" (.*?) \|"
ROWS = re.findall(rf"^\| `(\S+)` \|{CELL * 4} `(.+)` \|$", PAGE, re.MULTILINE)


def row(setting: Setting) -> tuple[str, str, str, str, str, str]:
    flags, variables = (
        ", ".join(f"`{name}`" for name in names) for names in (setting.flags, setting.variables)
    )
    return (
        setting.name,
        setting.default,
        setting.meaning,
        flags,
        variables,
        setting.line(),
    )


def test_the_table_matches_the_settings() -> None:
    assert [row(setting) for setting in SETTINGS] == ROWS


def test_the_defaults_of_controllers_match_the_controller_class() -> None:
    for name in ("workers", "resync_s", "sync_timeout_s"):
        default = BY_NAME[f"controllers.{name}"].default
        assert default == f"{getattr(Controller, name):g}, unless the controller sets it"


def test_the_example_file_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "natsctl.toml"
    file.write_text(text)
    effective = load_settings({}, {}, config=str(file))
    names = {
        f"{section}.{name}" for section, table in tomllib.loads(text).items() for name in table
    }
    assert set(effective.sources) == names


@pytest.mark.parametrize("text", ["workers = 'ten'", "resync = 60"])
def test_the_errors_on_the_page_match_the_raised_errors(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("natsctl.toml").write_text(f"[controllers]\n{text}\n")
    with pytest.raises(UsageError) as caught:
        load_settings({}, {})
    assert f"natsctl: error: {caught.value}\n" in PAGE
