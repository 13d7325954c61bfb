"""`natsctl new --example` lists and prints the examples, and the wheel contains them."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from natsctl import Controller
from natsctl.cli.main import run
from natsctl.daemon.loader import load

ROOT = Path(__file__).parents[4]
EXAMPLES = ["audit", "greetings", "hosts", "rollouts", "streams", "webapps"]


def test_every_example_is_listed_with_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "--example"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == EXAMPLES
    assert all(len(row.split()) > 4 for row in rows)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_printed_example_is_the_source_file_with_commands_for_the_current_folder(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", "--example", name]) == 0
    printed = capsys.readouterr().out
    source = (ROOT / "controllers" / f"{name}.py").read_text()
    assert printed == source.replace(f"controllers.{name}:", f"{name}:")
    assert f" {name}:" in printed
    assert "controllers." not in printed


def test_a_printed_example_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", "--example", "greetings"]) == 0
    (tmp_path / "printed_greetings.py").write_text(capsys.readouterr().out)
    monkeypatch.syspath_prepend(tmp_path)
    assert issubclass(load("printed_greetings:Greetings"), Controller)


def test_an_unknown_example_is_an_error_with_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["new", "--example", "greting"]) == 3
    assert "there is no example 'greting'; did you mean greetings?" in capsys.readouterr().err


def test_pyproject_includes_every_example_in_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["force-include"] == {
        f"controllers/{name}.py": f"natsctl/examples/{name}.py" for name in ["__init__", *EXAMPLES]
    } | {"examples/hooks": "natsctl/examples/hooks"}


@pytest.mark.long  # pip loads the build backend from the package index
def test_an_installed_wheel_prints_and_runs_the_examples(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet"]
    site, folder = tmp_path / "site", tmp_path / "folder"
    folder.mkdir()
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True)
    wheel = next(tmp_path.glob("*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    environ = {**os.environ, "PYTHONPATH": str(site)}

    def natsctl(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "natsctl", *words]
        return subprocess.run(
            command, check=True, cwd=folder, env=environ, capture_output=True, text=True
        ).stdout

    assert [row.split()[0] for row in natsctl("example").splitlines()[1:]] == EXAMPLES
    (folder / "greetings.py").write_text(natsctl("example", "greetings"))
    for controller in ("greetings:Greetings", "natsctl.examples.webapps:WebApps"):
        natsctl("rbac", "--no-kube", "--controller", controller)  # the command loads the class
