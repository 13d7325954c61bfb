"""`natsctl new` writes a project that is named after its kind and never overwrites a file."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from natsctl.cli.main import run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "controller", "manifest"),
    [
        ("site", "sites:Sites", "site.yaml"),
        ("Site", "sites:Sites", "site.yaml"),
        ("edge_site", "edge_sites:EdgeSites", "edge-site.yaml"),
        ("EdgeSite", "edge_sites:EdgeSites", "edge-site.yaml"),
        ("HTTPProxy", "http_proxies:HttpProxies", "http-proxy.yaml"),
        ("import", "imports:Imports", "import.yaml"),
        ("x25", "x_25s:X25s", "x-25.yaml"),
    ],
)
def test_modules_classes_and_files_are_named_after_the_kind(
    name: str, controller: str, manifest: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", name]) == 0
    assert f"--controller {controller} " in capsys.readouterr().out
    module = controller.partition(":")[0]
    assert {file.name for file in folder.iterdir()} == {
        f"{module}.py",
        f"test_{module}.py",
        manifest,
    }


@pytest.mark.parametrize("kube", [[], ["--kube"]], ids=["nats", "kube"])
def test_written_modules_pass_the_linter_and_the_formatter(kube: list[str], folder: Path) -> None:
    for name in ("site", "import", "b", "edge-site", "policy"):
        assert run(["new", name, *kube]) == 0
    for file in folder.iterdir():
        assert "$" not in file.read_text()
        assert file.suffix != ".py" or ast.get_docstring(ast.parse(file.read_text()))
    for words in (["check", "--select", "E,F,I,W,UP,B,ANN"], ["format", "--check"]):
        completed = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--isolated", "."],
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode == 0, completed.stdout
