"""You find a class and a module by its name."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "natsctl"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def test_no_two_public_classes_have_the_same_name() -> None:
    names = Counter(
        node.name
        for module in MODULES
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_has_the_name_of_one_in_a_neighbouring_folder() -> None:
    """The packages of natsctl are no neighbours: each surface has its `controller`, for example."""
    by_name = defaultdict(list)
    for module in MODULES:
        if module.parent.parent != PACKAGE:
            by_name[module.parent.parent, module.name].append(module)
    repeated = [modules for modules in by_name.values() if len(modules) > 1]
    repeated += [[module] for module in MODULES if module.parent.parent / module.name in MODULES]
    assert repeated == []
