"""The Python code blocks of the documentation run."""

import ast
import asyncio
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from natsctl.testing import VirtualTimeLoop

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if BLOCK.search(page.read_text())
]
RUNS_ITS_OWN_LOOP = re.compile(r"asyncio\.run\(|^import kopf$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the blocks in order, in one namespace; a block may import the named ones before it."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("snippets")
    for name, code in BLOCK.findall(page.read_text()):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compiled = compile(code, f"{page.name}:{name}", "exec", flags=flags, dont_inherit=True)
        if RUNS_ITS_OWN_LOOP.search(code):
            continue
        if name:
            monkeypatch.setitem(sys.modules, name.removesuffix(".py"), module)
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(execute(compiled, vars(module)))


async def execute(code: object, namespace: dict[str, object]) -> None:
    result = eval(code, namespace)  # type: ignore[arg-type]  # code of the page
    if inspect.isawaitable(result):
        await result
