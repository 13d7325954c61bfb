"""What a new controller is written as: itself, its test, and a manifest."""

import inspect
import keyword
import re
import sys
from importlib import resources
from string import Template

import msgspec

from natsctl.controller.controller import Controller
from natsctl.errors import UsageError
from natsctl.kubernetes.resources.names import plural

WORDS_MAX = 40  # characters; buckets, modules and classes are named after them

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")
_IN_USE = frozenset(
    {"Object", "Controller", "Note", "NoteSpec", "Config"}
)  # in the templates themselves


class Project(msgspec.Struct, frozen=True):
    """What is written. `files` are texts by file name, all in one folder.

    Attributes:
        controller: the path of its class, as `natsctl run` takes it.
        test: the file name of its test.
        manifest: the file name of its manifest.
        made: the bucket of what it makes; empty where that is of a cluster.
    """

    controller: str
    test: str
    manifest: str
    made: str
    files: dict[str, str]


def project(name: str, *, kube: bool = False) -> Project:
    """Return a controller for objects called *name*, such as `site`, `edge-site` or `EdgeSite`.

    What it makes for each is an object in NATS, or with *kube* one of a cluster. Its test, in
    memory, passes as it is. Raises `UsageError` for what cannot name a class, or names another.
    """
    words = _words(name)
    many = [*words[:-1], plural(words[-1])]
    kind, kinds = _class(words), _class(many)
    module, one = "_".join(many), "-".join(words)
    manifest = f"{one}.yaml"
    _check(name, kind, module)
    meaning = {
        "Kind": kind,
        "Kinds": kinds,
        "names": ", ".join(sorted((kind, kinds, f"{kind}Spec"), key=str.lower)),
        "module": module,
        "objects": module,
        "one": one,
        "bucket": "-".join(many),
        "manifest": manifest,
    }
    where = "-kube" if kube else ""
    templates = {
        f"{module}.py": f"controller{where}.py",
        f"test_{module}.py": f"test{where}.py",
        manifest: "manifest.yaml",
    }
    return Project(
        controller=f"{module}:{kinds}",
        test=f"test_{module}.py",
        manifest=manifest,
        made="" if kube else f"{one}-notes",
        files={file: _filled(template, meaning) for file, template in templates.items()},
    )


def _words(name: str) -> list[str]:
    if not _NAME.fullmatch(name) or len(name) > WORDS_MAX:
        raise UsageError(
            f"{name!r} cannot name a controller: write what one of its objects is called, in "
            f"letters, digits and '-', {WORDS_MAX} at most, such as site or edge-site"
        )
    return [word.lower() for word in _WORD.findall(name)]


def _class(words: list[str]) -> str:
    return "".join(word.capitalize() for word in words)


def _check(name: str, kind: str, module: str) -> None:
    """Raise `UsageError` where a name would hide another that is needed."""
    taken = (
        kind in _IN_USE
        or keyword.iskeyword(kind)
        or keyword.iskeyword(module)
        or module in sys.stdlib_module_names
        or module in {*dir(Controller), *inspect.get_annotations(Controller)}
    )
    if taken:
        raise UsageError(f"{name!r} is what something else is called already: choose another name")


def _filled(template: str, meaning: dict[str, str]) -> str:
    file = resources.files("natsctl.daemon") / "templates" / f"{template}.txt"
    return Template(file.read_text("utf-8")).substitute(meaning)
