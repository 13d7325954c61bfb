"""Loads the controller class at a path such as `package.module:Name`."""

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
from natsctl.controller.hook import SCHEME, hook_class
from natsctl.controller.slots import only_primary
from natsctl.daemon.operator import Guest
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError
from natsctl.telemetry.frames import explained_error

R = TypeVar("R", bound=Controller | Guest)

Loadable = Callable[[object], bool]
"""Returns whether an object of a module is a class that can be loaded."""

_OPTIONAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def load(path: str) -> type[Controller]:
    """Return the controller class at *path*, such as `controllers.greetings:Greetings`.

    Raises `UsageError` if the path has another form, if the module does not exist or cannot be
    imported, and if it has no such controller. The message names the wrong part of the path and a
    similar name; for an import that fails it has the module's own traceback.
    """
    if path.startswith(SCHEME):
        return hook_class(path)
    module, loaded = _loaded(path, _is_controller)
    if not _is_controller(loaded):
        raise UsageError(
            f"{path} is not a subclass of natsctl.Controller but {_described(loaded, module)}"
        )
    return _checked(loaded, path)


def load_runnable(path: str) -> type[Controller] | type[Guest]:
    """Return the class at *path*: a controller, or another class that the operator runs.

    The other class has the members of `Guest`. Raises the errors of `load`.
    """
    if path.startswith(SCHEME):
        return hook_class(path)
    module, loaded = _loaded(path, _is_runnable)
    if _is_controller(loaded):
        return _checked(loaded, path)
    if not _is_guest(loaded):
        raise UsageError(
            f"{path} is not a subclass of natsctl.Controller, and does not have use, run and stop: "
            f"it is {_described(loaded, module, _is_runnable)}"
        )
    return loaded


def make(controller_class: type[R], path: str) -> R:
    """Return a new controller of the class that was loaded from *path*.

    Raises `UsageError` if the class needs arguments, if its constructor raises, and if its
    declaration is invalid, see `check_controller`.
    """
    needed = [
        name
        for name, parameter in inspect.signature(controller_class).parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in _OPTIONAL
    ]
    if needed:
        raise UsageError(
            f"{path} needs constructor arguments ({', '.join(needed)}): give them defaults, or "
            "write a subclass without arguments"
        )
    try:
        controller = controller_class()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} cannot be created: {explained_error(error)}") from error
    if isinstance(controller, Controller):
        check_controller(controller)
    return controller


def _path_form(path: str) -> str:
    """Return the form that a path should have, with the file or the dotted name as an example."""
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
        names = [module.name for module in pkgutil.iter_modules()]
        reason = "it is neither in the current directory nor installed"
    elif not (folders := list(getattr(importlib.import_module(parent), "__path__", ()))):
        return f"there is no module {name}: {parent} is a module, not a package"
    else:
        names = [module.name for module in pkgutil.iter_modules(folders)]
        reason = f"{parent} exists and has {', '.join(names) or 'no modules'}"
    return f"there is no module {name}: {reason}{did_you_mean(last, names)}"


def _raised(name: str, error: BaseException) -> UsageError:
    """Return an error with the part of the traceback that is in the user's own modules."""
    return UsageError(f"{name} cannot be imported: {explained_error(error)}")


def _loaded(path: str, loadable: Loadable) -> tuple[ModuleType, object]:
    """Return the module and the object at *path*; an error lists the loadable objects."""
    module_name, colon, name = path.partition(":")
    if _is_file(module_name) or not (colon and module_name and name):
        raise UsageError(f"controller {path!r}: write {_path_form(path)}")
    module = _module(module_name)
    try:
        return module, getattr(module, name)
    except AttributeError:
        advice = _advice(name, module, loadable)
        raise UsageError(f"{module_name} has no {name!r}{advice}") from None


def _advice(name: str, module: ModuleType, loadable: Loadable) -> str:
    controllers = _names(module, loadable)
    if controllers:
        return f": its controllers are {', '.join(controllers)}{did_you_mean(name, controllers)}"
    return did_you_mean(
        name, [attribute for attribute in vars(module) if not attribute.startswith("_")]
    )


def _described(value: object, module: ModuleType, loadable: Loadable | None = None) -> str:
    """Describe an object that is not a controller, and list the module's controllers."""
    described = "another class" if isinstance(value, type) else f"a {type(value).__name__}"
    names = _names(module, loadable or _is_controller)
    return f"{described}; the controllers there are {', '.join(names)}" if names else described


def _checked(controller: type[Controller], path: str) -> type[Controller]:
    if controller.sync_handler is Controller.sync_handler:
        raise UsageError(f"{path} has no sync_handler: write `async def sync_handler(self, key)`")
    only_primary(controller)
    return controller


def _is_controller(value: object) -> TypeGuard[type[Controller]]:
    return isinstance(value, type) and issubclass(value, Controller)


def _is_guest(value: object) -> TypeGuard[type[Guest]]:
    methods = (getattr(value, name, None) for name in ("use", "run", "stop"))
    return isinstance(value, type) and all(map(callable, methods))


def _is_runnable(value: object) -> bool:
    return _is_controller(value) or _is_guest(value)


def _names(module: ModuleType, loadable: Loadable) -> list[str]:
    """Return the names of the loadable objects that the module does not import from natsctl."""
    return [
        name
        for name, value in vars(module).items()
        if loadable(value) and getattr(value, "__module__", "").partition(".")[0] != "natsctl"
    ]
