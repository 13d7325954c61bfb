"""`natsctl new`: what is written is named as its objects are, and nothing is ever written over."""

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
def test_everything_is_called_after_its_objects(
    name: str, controller: str, files: list[str]
) -> None:
    made = project(name)
    assert made.controller == controller
    assert list(made.files)[: len(files)] == files


@pytest.mark.parametrize("kube", [False, True], ids=["nats", "kube"])
@pytest.mark.parametrize("name", ["site", "import", "b", "edge-site", "policy"])
def test_what_is_written_is_python_that_a_formatter_and_a_linter_leave_as_it_is(
    name: str, folder: Path, *, kube: bool
) -> None:
    for file, text in project(name, kube=kube).files.items():
        assert "$" not in text
        (folder / file).write_text(text)
    for words in (["check", "--select", "E,F,I,W,UP,B,ANN"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--isolated", "."],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name", ["none", "a", "object", "controller", "note", "note-spec", "worker", "read", "o"]
)
def test_what_is_called_so_already_is_not_hidden(name: str) -> None:
    with pytest.raises(UsageError, match="is taken by Python or natsctl"):
        project(name)


@pytest.mark.parametrize("name", ["", "-a", "a--b", "a b", "a/b", "../a", "9a", "ä", "a" * 41])
def test_what_can_be_no_name_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "--", name]) == 2
    assert "cannot name a controller" in capsys.readouterr().err
    assert list(Path.cwd().iterdir()) == []


def test_it_says_what_was_written_and_what_to_do_next(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", "edge-site"]) == 0
    said = capsys.readouterr().out
    written = sorted(path.name for path in folder.iterdir())
    assert written == ["edge-site.yaml", "edge_sites.py", "test_edge_sites.py"]
    assert all(f"wrote {name}\n" in said for name in written)
    for step in (
        "python -m pytest test_edge_sites.py",
        "natsctl run --embedded --controller edge_sites:EdgeSites",
        "natsctl apply -f edge-site.yaml",
        "natsctl list edge-site-notes",
    ):
        assert f"\n  {step} " in said


@pytest.mark.parametrize("there", ["sites.py", "test_sites.py", "site.yaml"])
def test_where_one_of_its_files_is_there_nothing_is_written(
    folder: Path, there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / there).write_text("mine")
    assert run(["new", "site"]) == 4
    assert f"nothing was written, because {there} exists already\n" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == [there]
    assert (folder / there).read_text() == "mine"


def test_where_one_of_its_files_cannot_be_written_none_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "site.yaml").symlink_to("nowhere/site.yaml")
    assert run(["new", "site"]) == 2
    assert "site.yaml cannot be written" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["site.yaml"]


def test_its_modules_say_what_they_are() -> None:
    for kube in (False, True):
        made = project("site", kube=kube)
        for file in ("sites.py", "test_sites.py"):
            assert ast.get_docstring(ast.parse(made.files[file]))
