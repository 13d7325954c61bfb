"""Writes the files of a new controller: the controller, its test and a manifest."""

import inspect
import keyword
import re
import sys
from importlib import resources
from string import Template

import msgspec

from natsctl.controller.controller import Controller
from natsctl.errors import UsageError
from natsctl.kubernetes.names import plural

NAME_MAX = 40  # characters of a name, which becomes part of buckets, modules and classes

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")
_IN_USE = frozenset(
    {"Object", "Controller", "Note", "NoteSpec", "Config"}
)  # names that the templates use


class Project(msgspec.Struct, frozen=True):
    """The texts of a new controller by file name, with the names of its test and its manifest.

    `controller` is the path of the class, as `natsctl run` takes it, and `secondaries` their
    bucket; empty if they are in a cluster.
    """

    controller: str
    test: str
    manifest: str
    secondaries: str
    files: dict[str, str]


def project(name: str, *, kube: bool = False) -> Project:
    """Return a controller for objects called *name*, such as `site`, `edge-site` or `EdgeSite`.

    The controller makes one secondary for each object: in NATS, or with *kube* a ConfigMap in a
    cluster. Its test needs no server and passes. Raises `UsageError` if the name can't become the
    name of a class, or if that name is taken.
    """
    if not _NAME.fullmatch(name) or len(name) > NAME_MAX:
        raise UsageError(
            f"{name!r} cannot name a controller: give the name of one of its objects, such as site "
            f"or edge-site, of at most {NAME_MAX} letters, digits and '-'"
        )
    words = [word.lower() for word in _WORD.findall(name)]
    plural_words = [*words[:-1], plural(words[-1])]
    kind, kinds = ("".join(map(str.capitalize, some)) for some in (words, plural_words))
    module, singular = "_".join(plural_words), "-".join(words)
    manifest = f"{singular}.yaml"
    taken = {*dir(Controller), *inspect.get_annotations(Controller), *sys.stdlib_module_names}
    if kind in _IN_USE or module in taken or any(map(keyword.iskeyword, (kind, module))):
        raise UsageError(f"{name!r} is taken by Python or natsctl: choose another name")
    meaning = {
        "Kind": kind,
        "Kinds": kinds,
        "names": ", ".join(sorted((kind, kinds, f"{kind}Spec"), key=str.lower)),
        "module": module,
        "objects": module,
        "one": singular,
        "bucket": "-".join(plural_words),
        "manifest": manifest,
    }
    variant, folder = "-kube" if kube else "", resources.files("natsctl.daemon") / "templates"
    templates = {
        f"{module}.py": f"controller{variant}.py",
        f"test_{module}.py": f"test{variant}.py",
        manifest: "manifest.yaml",
    }
    return Project(
        controller=f"{module}:{kinds}",
        test=f"test_{module}.py",
        manifest=manifest,
        secondaries="" if kube else f"{singular}-notes",
        files={
            file: Template((folder / f"{template}.txt").read_text("utf-8")).substitute(meaning)
            for file, template in templates.items()
        },
    )
