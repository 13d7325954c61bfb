"""Loads the public names of a package when they are first used.

A package lists its public names once, as imports that only type checkers execute:

    if TYPE_CHECKING:
        from natsctl.watchers.controller import InformerController as InformerController
    else:
        __getattr__, __dir__ = load_on_first_use(__name__)

So `import natsctl` loads none of the modules behind the names.
"""

import ast
import functools
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType

_NONE: Mapping[str, str] = MappingProxyType({})


def load_on_first_use(
    package: str, *, renamed: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that lists its public names as imports.

    `__getattr__` also gives `__all__`, in alphabetical order. The source of the package is read
    when the first name is used. A deprecated name in *renamed* gives the object with the new name,
    and raises a `DeprecationWarning`.
    """
    modules = functools.cache(lambda: dict(_exports(package)))

    def load(name: str) -> object:
        if name == "__all__":
            return sorted(modules())
        if name in renamed:
            warnings.warn(
                f"{package}.{name} is deprecated: use {package}.{renamed[name]}",
                DeprecationWarning,
                stacklevel=2,
            )
            return load(renamed[name])
        if name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(modules()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules()})

    return load, names


def _exports(package: str) -> Iterator[tuple[str, str]]:
    """Yield each public name with its module, from `import A as A` and `import *`."""
    source = pkgutil.get_data(package, "__init__.py")  # pytest's own loader has no get_source
    for node in ast.walk(ast.parse(source or b"")):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            if alias.name == "*":
                yield from ((name, node.module) for name in import_module(node.module).__all__)
            elif alias.asname is not None:
                yield alias.asname, node.module
