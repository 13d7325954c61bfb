"""Which class `package.module:Name` means, or which part of that is wrong."""

import importlib
import importlib.util
import inspect
import os
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeGuard, TypeVar

from natsctl.controller.controller import Controller, check_controller
from natsctl.controller.slots.declare import only_primary
from natsctl.daemon.operator import Guest
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError
from natsctl.telemetry.frames import explained_error

R = TypeVar("R", bound=Controller | Guest)

Wanted = Callable[[object], bool]

_OPTIONAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def load(path: str) -> type[Controller]:
    """Return the controller class at *path*, such as `controllers.greetings:Greetings`.

    Raises `UsageError` that names the wrong part and what may have been meant: the path's form,
    the module, what the module raises (with its own traceback), the name in it, or what that is.
    """
    module, found = _found(path, _is_controller)
    if not _is_controller(found):
        raise UsageError(f"{path} is no subclass of natsctl.Controller but {_what(found, module)}")
    return _checked(found, path)


def load_runnable(path: str) -> type[Controller] | type[Guest]:
    """Return the class at *path*: of a controller, or of anything else that can be run.

    That has `name`, `synced`, `kinds`, `use`, `run` and `stop`; see `Guest`. Raises what `load`
    raises.
    """
    module, found = _found(path, _is_runnable)
    if _is_controller(found):
        return _checked(found, path)
    if not _is_guest(found):
        raise UsageError(
            f"{path} is no subclass of natsctl.Controller, nor has it use, run and stop, but it "
            f"is {_what(found, module, _is_runnable)}"
        )
    return found


def make(found: type[R], path: str) -> R:
    """Return a controller of the class that was found at *path*.

    Raises `UsageError` if the class needs arguments, raises, or cannot run as it is written; see
    `check_controller`.
    """
    needed = [
        name
        for name, parameter in inspect.signature(found).parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in _OPTIONAL
    ]
    if needed:
        raise UsageError(
            f"{path} needs constructor arguments ({', '.join(needed)}): give them defaults, or "
            "write a subclass without arguments"
        )
    try:
        controller = found()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} cannot be made: {explained_error(error)}") from error
    if isinstance(controller, Controller):
        check_controller(controller)
    return controller


def _form(path: str) -> str:
    """Return how to write a path that has another form: that of a file, or without a colon."""
    file, _, name = path.partition(":")
    if _is_file(file):
        parts = Path(os.path.relpath(file)).with_suffix("").parts
        module = "package.module" if ".." in parts else ".".join(parts)
        return f"{module}:{name or 'Name'}"
    module, _, name = path.replace(":", "").rpartition(".")
    example = f", for example {module}:{name}" if module and name else ""
    return f"package.module:Name{example}"


def _is_file(module: str) -> bool:
    return "/" in module or module.endswith(".py")


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _raised(name, error) from error
        raise UsageError(_not_found(name, error.name)) from None
    except (Exception, SystemExit) as error:
        raise _raised(name, error) from error


def _not_found(name: str, missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    if not parent:
        known = [found.name for found in pkgutil.iter_modules()]
        where = "it is neither in the current directory nor installed"
    elif not (places := list(getattr(importlib.import_module(parent), "__path__", ()))):
        return f"there is no module {name}: {parent} is a module, not a package"
    else:
        known = [found.name for found in pkgutil.iter_modules(places)]
        where = f"{parent} exists and has {', '.join(known) or 'no modules'}"
    return f"there is no module {name}: {where}{did_you_mean(last, known)}"


def _raised(name: str, error: BaseException) -> UsageError:
    """Return an error that shows the author of the module the lines of their own."""
    return UsageError(f"{name} cannot be imported: {explained_error(error)}")


def _found(path: str, wanted: Wanted) -> tuple[ModuleType, object]:
    module_name, colon, name = path.partition(":")
    if _is_file(module_name) or not (colon and module_name and name):
        raise UsageError(f"controller {path!r}: write {_form(path)}")
    module = _module(module_name)
    try:
        return module, getattr(module, name)
    except AttributeError:
        instead = _instead(name, module, wanted)
        raise UsageError(f"{module_name} has no {name!r}{instead}") from None


def _instead(name: str, module: ModuleType, wanted: Wanted) -> str:
    found = _others(module, wanted)
    if found:
        return f": its controllers are {', '.join(found)}{did_you_mean(name, found)}"
    return did_you_mean(name, [other for other in vars(module) if not other.startswith("_")])


def _what(found: object, module: ModuleType, wanted: "Wanted | None" = None) -> str:
    """Return what was found instead of a controller, and which controllers there are."""
    what = "another class" if isinstance(found, type) else f"a {type(found).__name__}"
    others = _others(module, wanted or _is_controller)
    return f"{what}; the controllers there are {', '.join(others)}" if others else what


def _checked(found: type[Controller], path: str) -> type[Controller]:
    if found.sync_handler is Controller.sync_handler:
        raise UsageError(f"{path} has no sync_handler: write `async def sync_handler(self, key)`")
    only_primary(found)
    return found


def _is_controller(found: object) -> TypeGuard[type[Controller]]:
    return isinstance(found, type) and issubclass(found, Controller)


def _is_guest(found: object) -> TypeGuard[type[Guest]]:
    methods = (getattr(found, name, None) for name in ("use", "run", "stop"))
    return isinstance(found, type) and all(map(callable, methods))


def _is_runnable(found: object) -> bool:
    return _is_controller(found) or _is_guest(found)


def _others(module: ModuleType, wanted: Wanted) -> list[str]:
    """Return the names of the module's own that are wanted."""
    return [
        name
        for name, found in vars(module).items()
        if wanted(found) and getattr(found, "__module__", "").partition(".")[0] != "natsctl"
    ]
