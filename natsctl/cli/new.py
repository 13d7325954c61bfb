"""`natsctl new`: creates a controller, its test and a manifest; or prints an example."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from natsctl.cli.command import App
from natsctl.cli.output import write_table
from natsctl.cli.terminal import write_line, write_text
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.daemon.template import project
from natsctl.errors import ConflictError, NotFoundError, UsageError
from natsctl.kubernetes.names import plural

app = App()

NAME = re.compile(r"[a-z][a-z0-9]*")

PACKAGE = Path(__file__).parents[1]

KUBECTL = "kubectl get configmaps -l natsctl.io/owner-key=first"


@app.add(
    "natsctl new site",
    "natsctl new edge-site --kube",
    "natsctl new shop --hook javascript",
    "natsctl new --example greetings > greetings.py",
    name="@NAME | Singular name of the objects, such as site; with --example, of the example",
    kube="Make secondaries in Kubernetes instead of NATS",
    hook="Make a service in this language that decides, as a hook",
    example="Print an example; without NAME, list the examples",
)
def new(
    *,
    name: str | None = None,
    kube: bool = False,
    hook: Literal["go", "javascript", "python"] | None = None,
    example: bool = False,
) -> None:
    """Create a controller, its test and a manifest; or a hook.

    The files are written to the current folder, and run as they are. Nothing is written if one of
    them exists. An example is a module that runs as it is, under its name in the current folder.
    """
    if example:
        if kube or hook is not None:
            raise UsageError("--example prints a finished module: leave --kube and --hook out")
        _print_example(name)
        return
    if name is None:
        raise UsageError("what should it be called? write natsctl new site")
    if hook is not None:
        if kube:
            raise UsageError("a hook names its children when it runs: leave --kube out")
        _write_hook(name, hook)
        return
    created = project(name, kube=kube)
    listing = f"natsctl get {created.secondaries}" if created.secondaries else KUBECTL
    steps = {
        f"python -m pytest {created.test}": "test it in memory",
        f"natsctl run --embedded --controller {created.controller}": "run it with a private server",
        f"natsctl apply -f {created.manifest}": "in another terminal",
        listing: "list its secondaries",
    }
    width = max(map(len, steps))
    next_steps = (f"  {command.ljust(width)}   # {comment}" for command, comment in steps.items())
    _write(created.files, "Next:", *next_steps)


def _write_hook(name: str, language: str) -> None:
    kinds = plural(name)
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} isn't a name for a hook: write a singular such as shop")
    installed = PACKAGE / "examples" / "hooks"
    folder = installed if installed.is_dir() else PACKAGE.parent / "examples" / "hooks"
    files = {
        file.name: file.read_text().replace("shops", kinds).replace("shop", name)
        for file in sorted((folder / language).iterdir())
        if file.is_file()  # pip compiles the example, into a folder beside it
    }
    run = f"  natsctl run --hook {kinds}.sync --primary {kinds} --secondary pages"
    _write(files, "Next: start it, as its first lines say, and beside it:", run)


def _write(files: Mapping[str, str], *next_steps: str) -> None:
    """Write all files to the current folder, or none, and then what to do next."""
    existing = [name for name in files if Path(name).exists()]
    if existing:
        raise ConflictError(f"nothing was written, because {', '.join(existing)} exists already")
    written: list[Path] = []
    try:
        for name, text in files.items():
            with Path(name).open("x", encoding="utf-8") as file:
                written.append(Path(name))
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error
    for line in (*(f"wrote {name}" for name in files), "", *next_steps):
        write_line(line)


def _print_example(name: str | None) -> None:
    installed = PACKAGE / "examples"
    folder = installed if installed.is_dir() else PACKAGE.parent / "controllers"
    found = {path.stem: path for path in sorted(folder.glob("*.py"))}
    files = {stem: path for stem, path in found.items() if stem not in {"__init__", "demo"}}
    if name is None:
        rows: list[list[str]] = []
        for stem, path in files.items():
            summary = (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]
            title, _, description = summary.partition(": ")
            rows.append([stem, description or title])
        write_table(["NAME", "DESCRIPTION"], rows)
        return
    if name not in files:
        raise NotFoundError(
            f"there is no example {name!r}{did_you_mean(name, files)}; new --example lists them"
        )
    source = files[name].read_text("utf-8")
    write_text(source.replace(f"controllers.{name}:", f"{name}:").rstrip("\n"))
