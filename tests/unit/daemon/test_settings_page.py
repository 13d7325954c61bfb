"""The page about settings tells of each, and what it shows is right."""

import re
import tomllib
from pathlib import Path

import pytest

from natsctl.daemon.settings.catalogue import SETTINGS, Setting
from natsctl.daemon.settings.load import load_settings
from natsctl.errors import UsageError

PAGE = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
ROWS = re.findall(r"^\| `(\S+)` \| (.*) \| (.*) \| `(.+)` \|$", PAGE, re.MULTILINE)


def row(setting: Setting) -> tuple[str, str, str, str]:
    flags, variables = (
        ", ".join(f"`{name}`" for name in names) for names in (setting.flags, setting.variables)
    )
    return setting.name, flags, variables, setting.line()


def test_the_table_has_every_setting_as_it_is() -> None:
    assert [row(setting) for setting in SETTINGS] == ROWS


def test_the_file_is_a_good_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "natsctl.toml"
    file.write_text(text)
    found = load_settings({}, {}, config=str(file))
    said = {f"{section}.{name}" for section, at in tomllib.loads(text).items() for name in at}
    assert set(found.sources) == said


@pytest.mark.parametrize(("line", "text"), [(10, "workers = 'ten'"), (11, "resync = 60")])
def test_the_errors_are_those_that_are_shown(
    line: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("natsctl.toml").write_text("\n" * (line - 2) + f"[controllers]\n{text}\n")
    with pytest.raises(UsageError) as caught:
        load_settings({}, {})
    assert f"natsctl: error: {caught.value}\n" in PAGE
