"""`natsctl new`: creates a controller, its test and a manifest; or prints an example."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from natsctl.cli.command import App
from natsctl.cli.output import write_table
from natsctl.cli.terminal import write_line, write_text
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.daemon.template import Project, project
from natsctl.errors import ConflictError, NotFoundError, UsageError
from natsctl.kubernetes.names import plural

app = App()

NAME = re.compile(r"[a-z][a-z0-9]*")

PACKAGE = Path(__file__).parents[1]

KUBECTL = "kubectl get configmaps -l natsctl.io/owner-key=first"


def _examples(incomplete: str) -> list[str]:
    return [name for name in example_files() if name.startswith(incomplete)]


@app.add(
    "natsctl new site",
    "natsctl new edge-site --kube",
    "natsctl new shop --hook javascript",
    "natsctl new --example greetings > greetings.py",
    kube="Make secondaries in Kubernetes instead of NATS",
    hook="Make a service in this language that decides, as a hook",
    example="Print an example; without NAME, list the examples",
)
def new(
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Singular name of the objects, such as site; with --example, of the example",
            autocompletion=_examples,
        ),
    ] = None,
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
    _write(Path.cwd(), created.files)
    for file in created.files:
        write_line(f"wrote {file}")
    for line in ("", "Next:", *_next_steps(created)):
        write_line(line)


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
    _write(Path.cwd(), files)
    for file in files:
        write_line(f"wrote {file}")
    run = f"  natsctl run --hook {kinds}.sync --primary {kinds} --secondary pages"
    for line in ("", "Next: start it, as its first lines say, and beside it:", run):
        write_line(line)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        raise ConflictError(f"nothing was written, because {', '.join(existing)} exists already")
    written: list[Path] = []
    try:
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                written.append(folder / name)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error


def _next_steps(created: Project) -> list[str]:
    listing = f"natsctl get {created.secondaries}" if created.secondaries else KUBECTL
    comments = {
        f"python -m pytest {created.test}": "test it in memory",
        f"natsctl run --embedded --controller {created.controller}": "run it with a private server",
        f"natsctl apply -f {created.manifest}": "in another terminal",
        listing: "list its secondaries",
    }
    width = max(map(len, comments))
    return [f"  {command.ljust(width)}   # {comment}" for command, comment in comments.items()]


_NO_EXAMPLES = ("__init__", "demo")


def example_files() -> dict[str, Path]:
    """Return the file of each example by its name."""
    installed = PACKAGE / "examples"
    folder = installed if installed.is_dir() else PACKAGE.parent / "controllers"
    return {
        path.stem: path for path in sorted(folder.glob("*.py")) if path.stem not in _NO_EXAMPLES
    }


def _print_example(name: str | None) -> None:
    files = example_files()
    if name is None:
        write_table(
            ["NAME", "DESCRIPTION"], [[key, _description(file)] for key, file in files.items()]
        )
        return
    if name not in files:
        raise NotFoundError(
            f"there is no example {name!r}{did_you_mean(name, files)}; new --example lists them"
        )
    source = files[name].read_text("utf-8")
    write_text(source.replace(f"controllers.{name}:", f"{name}:").rstrip("\n"))


def _description(file: Path) -> str:
    summary = (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition("\n")[0]
    title, _, description = summary.partition(": ")
    return description or title
