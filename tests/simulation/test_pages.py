"""The controllers of the documentation pass the simulation."""

import ast
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from natsctl.testing import simulate

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)

RUNS_ITS_OWN_LOOP = re.compile(r"asyncio\.run\(|^import kopf$", re.MULTILINE)


class Example(msgspec.Struct, frozen=True):
    """A controller of a page: the last class of that name, unless the block is numbered."""

    page: str
    name: str
    specs: dict[str, dict[str, Any]]
    others: tuple[dict[str, Any], ...] = ()
    number: int = 0  # of the block among those that define the class
    free: tuple[str, ...] = ()  # buckets that depend on the order of events, and stay

    @property
    def documents(self) -> list[dict[str, Any]]:
        specs = [{"key": key, "spec": spec} for key, spec in self.specs.items()]
        return [*specs, *self.others]

    def controller(self, monkeypatch: pytest.MonkeyPatch) -> type[Any]:
        """Run the page up to the block that defines the class."""
        definitions = 0
        module = ModuleType(f"page_{self.page}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for name, code in BLOCK.findall((ROOT / f"{self.page}.md").read_text()):
            if name:
                monkeypatch.setitem(sys.modules, name.removesuffix(".py"), module)
            if RUNS_ITS_OWN_LOOP.search(code):
                continue
            compiled = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if not compiled.co_flags & inspect.CO_COROUTINE:
                exec(compiled, vars(module))
            definitions += f"class {self.name}(" in code
            if definitions > self.number:
                cls: type[Any] = vars(module)[self.name]
                return cls
        raise LookupError(self.name)

    def simulate(self, runs: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """Simulate the controller, whose files are in the folder."""
        controller = self.controller(monkeypatch)
        monkeypatch.chdir(folder)
        documents, free = self.documents, self.free
        simulate(controller, objects=documents, runs=runs, ignore=free, keep=free)


TEXTS = {"a": {"text": "hi"}, "b": {"text": "ho"}}
IMAGES = {"a": {"image": "nginx"}, "b": {"image": "caddy"}}
SLOGANS = {"a": {"slogan": "fish chips"}, "b": {"slogan": "salt vinegar"}}
REGION = {"bucket": "regions", "key": "eu", "spec": {"language": "en"}}
EXAMPLES = [  # not Folders of docs/external: a person settles its creations of unknown result
    Example("README", "Greetings", TEXTS),
    Example("README", "Sites", TEXTS),
    Example("docs/testing", "Sites", TEXTS),
    Example("docs/first-controller", "Sites", TEXTS),
    Example(
        "docs/controllers",
        "Shops",
        {"a": {"region": "eu", "text": "hi"}, "b": {"region": "eu", "text": "ho"}},
        (REGION,),
    ),
    Example("docs/kubernetes", "Shops", TEXTS),
    Example("docs/kopf", "Shops", TEXTS),
    Example("docs/dynamic", "Pages", {"a": {"template": "plain", "theme": "dark"}}),
    Example("docs/schemas", "Shops", {"a": {"sign": "Inn", "floors": 2}}),
    Example("docs/versions", "Shops", IMAGES),
    Example("docs/versions", "Shops", {"a": {"images": ["nginx", "caddy"]}}, number=1),
    Example("docs/replay", "Shops", SLOGANS),
    Example("docs/replay", "Shops", SLOGANS, number=1),
    Example("docs/pausing", "Shops", TEXTS),
    Example("docs/versions", "Shops", IMAGES, number=2),
    Example("docs/simulation", "Disks", {"a": {"size": 1}, "b": {"size": 2}}),
    Example("docs/simulation", "Trail", IMAGES, free=("trail",)),
    Example(
        "docs/watchers", "Trail", {}, ({"key": "a", "open": True}, {"key": "b", "open": False})
    ),
    Example("docs/blocking", "Disks", {"a": {"device": "sda"}}),
    Example(
        "docs/buckets", "Quotas", {}, ({"key": "a", "requests": 2}, {"key": "b", "requests": 3})
    ),
]


def _name(example: Example) -> str:
    return f"{example.page}-{example.name}-{example.number}"


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_a_controller_of_a_page_passes(
    example: Example, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    example.simulate(3, monkeypatch, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_a_controller_of_a_page_passes_ten_thousand_runs(
    example: Example, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    example.simulate(10_000, monkeypatch, tmp_path)
