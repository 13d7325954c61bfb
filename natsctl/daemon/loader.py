"""Loads the controller class at a path such as `package.module:Name`."""

import importlib
import importlib.util
import inspect
import os
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import TypeGuard, TypeVar

from natsctl.controller.controller import Controller, check_controller
from natsctl.controller.hook import SCHEME, hook_class
from natsctl.controller.slots import only_primary
from natsctl.daemon.operator import Guest
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError
from natsctl.telemetry.exceptions import explained_error

R = TypeVar("R", bound=Controller | Guest)

_OPTIONAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def load(path: str) -> type[Controller] | type[Guest]:
    """Return the class at *path*, such as `controllers.greetings:Greetings`.

    It's a controller, or another class that the operator runs, with the members of `Guest`. Raises
    `UsageError` if the path has another form, if the module doesn't exist or can't be imported, and
    if it has no such class. The message names the wrong part of the path and a similar name; for an
    import that fails it has the module's own traceback.
    """
    if path.startswith(SCHEME):
        return hook_class(path)
    module_name, colon, name = path.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        parts = Path(os.path.relpath(module_name)).with_suffix("").parts
        module_name = "package.module" if ".." in parts else ".".join(parts)
        raise UsageError(f"controller {path!r}: write {module_name}:{name or 'Name'}")
    if not (colon and module_name and name):
        dotted, _, last = path.replace(":", "").rpartition(".")
        example = f", for example {dotted}:{last}" if dotted and last else ""
        raise UsageError(f"controller {path!r}: write package.module:Name{example}")
    module = _module(module_name)
    controllers = [  # those that the module doesn't import from natsctl
        other
        for other, value in vars(module).items()
        if (_is_controller(value) or _is_guest(value))
        and getattr(value, "__module__", "").partition(".")[0] != "natsctl"
    ]
    if name not in vars(module) and not hasattr(module, name):
        others = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        there = f": its controllers are {', '.join(controllers)}" if controllers else ""
        advice = f"{there}{did_you_mean(name, controllers or others)}"
        raise UsageError(f"{module_name} has no {name!r}{advice}")
    loaded: object = getattr(module, name)
    if _is_controller(loaded):
        if loaded.sync_handler is Controller.sync_handler:
            raise UsageError(
                f"{path} has no sync_handler: write `async def sync_handler(self, key)`"
            )
        only_primary(loaded)
        return loaded
    if _is_guest(loaded):
        return loaded
    described = "another class" if isinstance(loaded, type) else f"a {type(loaded).__name__}"
    there = f"; the controllers there are {', '.join(controllers)}" if controllers else ""
    raise UsageError(
        f"{path} is not a subclass of natsctl.Controller, and does not have use, run and stop: "
        f"it is {described}{there}"
    )


def _module(name: str) -> ModuleType:
    """Import a module; an error has the part of the traceback that is in the user's own modules."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise UsageError(f"{name} cannot be imported: {explained_error(error)}") from error
    parent, _, last = missing.rpartition(".")
    folders = list(getattr(importlib.import_module(parent), "__path__", ())) if parent else None
    if folders == []:
        raise UsageError(f"there is no module {name}: {parent} is a module, not a package")
    names = [module.name for module in pkgutil.iter_modules(folders)]
    reason = "it is neither in the current directory nor installed"
    if parent:
        reason = f"{parent} exists and has {', '.join(names) or 'no modules'}"
    raise UsageError(f"there is no module {name}: {reason}{did_you_mean(last, names)}")


def _is_controller(value: object) -> TypeGuard[type[Controller]]:
    return isinstance(value, type) and issubclass(value, Controller)


def _is_guest(value: object) -> TypeGuard[type[Guest]]:
    methods = (getattr(value, name, None) for name in ("use", "run", "stop"))
    return isinstance(value, type) and all(map(callable, methods))


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
