"""`natsctl new`: creates a controller, its test and a manifest."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from natsctl.cli.framework.command import App
from natsctl.cli.output.terminal import write_line
from natsctl.daemon.template import Project, project
from natsctl.errors import ConflictError, UsageError
from natsctl.kubernetes.names import plural

Language = Literal["go", "javascript", "python"]

NAME = re.compile(r"[a-z][a-z0-9]*")
PACKAGE = Path(__file__).parents[2]
KUBECTL = "kubectl get configmaps -l natsctl.io/owner-key=first"

app = App()


@app.add(
    "natsctl new site",
    "natsctl new edge-site --kube",
    "natsctl new shop --hook javascript",
)
def new(
    *,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Singular name of the objects, such as site"),
    ],
    kube: Annotated[
        bool, typer.Option("--kube", help="Make secondaries in Kubernetes instead of NATS")
    ] = False,
    hook: Annotated[
        Language | None,
        typer.Option("--hook", help="Make a service in this language that decides, as a hook"),
    ] = None,
) -> None:
    """Create a controller, its test and a manifest; or a hook.

    The files are written to the current folder, and run as they are. Nothing is written if one of
    the files exists.
    """
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


def _write_hook(name: str, language: Language) -> None:
    """Write the example of a hook, with the names of these objects in place of its own."""
    kinds = plural(name)
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} isn't a name for a hook: write a singular such as shop")
    installed = PACKAGE / "examples" / "hooks"
    folder = installed if installed.is_dir() else PACKAGE.parent / "examples" / "hooks"
    files = {
        file.name: file.read_text().replace("shops", kinds).replace("shop", name)
        for file in sorted((folder / language).iterdir())
    }
    _write(Path.cwd(), files)
    for file in files:
        write_line(f"wrote {file}")
    run = f"  natsctl run --hook {kinds}.sync --primary {kinds} --secondary pages"
    for line in ("", "Next: start it, as its first lines say, and beside it:", run):
        write_line(line)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write all files, or none if one of them cannot be written."""
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
    """Return commands to try, each with a comment."""
    listing = f"natsctl list {created.secondaries}" if created.secondaries else KUBECTL
    comments = {
        f"python -m pytest {created.test}": "test it in memory",
        f"natsctl run --embedded --controller {created.controller}": "run it with a private server",
        f"natsctl apply -f {created.manifest}": "in another terminal",
        listing: "list its secondaries",
    }
    width = max(map(len, comments))
    return [f"  {command.ljust(width)}   # {comment}" for command, comment in comments.items()]
