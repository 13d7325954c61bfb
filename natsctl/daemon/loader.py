"""Which controller class `package.module:Name` means, or which part of that is wrong."""

import importlib
import importlib.util
import inspect
import pkgutil
import traceback
from types import ModuleType

from natsctl.core.declare import only_primary
from natsctl.daemon.names import meant
from natsctl.errors import UsageError
from natsctl.runtime import Controller


def load(path: str) -> type[Controller]:
    """Return the class at *path*, such as `controllers.greetings:Greetings`.

    Raises `UsageError` that names the wrong part and what may have been meant: the path's form,
    the module, what the module raises (with its own traceback), the name in it, or what that is.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise UsageError(f"controller {path!r}: write package.module:Name{_split(path)}")
    module = _module(module_name)
    try:
        found = getattr(module, name)
    except AttributeError:
        raise UsageError(f"{module_name} has no {name!r}{_instead(name, module)}") from None
    return _checked(found, path, module)


def _split(path: str) -> str:
    """Return how a path without a colon may have been meant."""
    module, _, name = path.replace(":", "").rpartition(".")
    if path.endswith(".py") or not module or not name:
        return ""
    return f", for example {module}:{name}"


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
    return f"there is no module {name}: {where}{meant(last, known)}"


def _raised(name: str, error: BaseException) -> UsageError:
    """Return an error with the traceback as the module's author wants to see it."""
    told = traceback.TracebackException.from_exception(error)
    for number, frame in enumerate(told.stack):
        if frame.filename != __file__ and "importlib" not in frame.filename:
            del told.stack[:number]
            break
    else:
        told.stack.clear()
    return UsageError(f"{name} cannot be imported:\n{''.join(told.format()).rstrip()}")


def _instead(name: str, module: ModuleType) -> str:
    found = _controllers(module)
    if found:
        return f": its controllers are {', '.join(found)}{meant(name, found)}"
    return meant(name, [other for other in vars(module) if not other.startswith("_")])


def _checked(found: object, path: str, module: ModuleType) -> type[Controller]:
    if not (isinstance(found, type) and issubclass(found, Controller)):
        what = f"a {type(found).__name__}" if not isinstance(found, type) else "another class"
        others = _controllers(module)
        instead = f"; the controllers there are {', '.join(others)}" if others else ""
        raise UsageError(f"{path} is no subclass of natsctl.Controller but {what}{instead}")
    if found.sync_handler is Controller.sync_handler:
        raise UsageError(f"{path} has no sync_handler: write `async def sync_handler(self, key)`")
    only_primary(found)
    return found


def _controllers(module: ModuleType) -> list[str]:
    return [
        name
        for name, found in vars(module).items()
        if inspect.isclass(found) and issubclass(found, Controller) and found is not Controller
    ]
