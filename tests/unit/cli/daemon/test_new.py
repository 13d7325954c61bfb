"""`natsctl new` writes a project that is named after its kind and never overwrites a file."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from natsctl.cli.main import run
from natsctl.daemon.template import project
from natsctl.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "controller", "files"),
    [
        ("site", "sites:Sites", ["sites.py", "test_sites.py", "site.yaml"]),
        ("Site", "sites:Sites", ["sites.py", "test_sites.py", "site.yaml"]),
        ("edge-site", "edge_sites:EdgeSites", ["edge_sites.py", "test_edge_sites.py"]),
        ("edge_site", "edge_sites:EdgeSites", ["edge_sites.py", "test_edge_sites.py"]),
        ("EdgeSite", "edge_sites:EdgeSites", ["edge_sites.py", "test_edge_sites.py"]),
        ("HTTPProxy", "http_proxies:HttpProxies", ["http_proxies.py", "test_http_proxies.py"]),
        ("import", "imports:Imports", ["imports.py", "test_imports.py", "import.yaml"]),
        ("x25", "x_25s:X25s", ["x_25s.py", "test_x_25s.py", "x-25.yaml"]),
    ],
)
def test_modules_classes_and_files_are_named_after_the_kind(
    name: str, controller: str, files: list[str]
) -> None:
    written_project = project(name)
    assert written_project.controller == controller
    assert list(written_project.files)[: len(files)] == files


@pytest.mark.parametrize("kube", [False, True], ids=["nats", "kube"])
@pytest.mark.parametrize("name", ["site", "import", "b", "edge-site", "policy"])
def test_written_modules_pass_the_linter_and_the_formatter(
    name: str, folder: Path, *, kube: bool
) -> None:
    for file, text in project(name, kube=kube).files.items():
        assert "$" not in text
        (folder / file).write_text(text)
    for words in (["check", "--select", "E,F,I,W,UP,B,ANN"], ["format", "--check"]):
        completed = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--isolated", "."],
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode == 0, completed.stdout


@pytest.mark.parametrize(
    "name", ["none", "a", "object", "controller", "note", "note-spec", "worker", "read", "o"]
)
def test_a_name_of_python_or_natsctl_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="is taken by Python or natsctl"):
        project(name)


@pytest.mark.parametrize("name", ["", "-a", "a--b", "a b", "a/b", "../a", "9a", "ä", "a" * 41])
def test_an_invalid_name_is_rejected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "--", name]) == 2
    assert "cannot name a controller" in capsys.readouterr().err
    assert list(Path.cwd().iterdir()) == []


def test_written_modules_have_docstrings() -> None:
    for kube in (False, True):
        written_project = project("site", kube=kube)
        for file in ("sites.py", "test_sites.py"):
            assert ast.get_docstring(ast.parse(written_project.files[file]))
