"""Adds the pages that are generated to the documentation site; mkdocs loads this module as a hook.

- The README is the start page. CONTRIBUTING, SECURITY and CHANGELOG are pages too.
- The reference of the commands comes from the commands themselves.
- The reference of the Python names lists `natsctl.__all__`; mkdocstrings reads the docstrings.
- A link to any other file of the repository leads to a page with its text.
"""

import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig  # type: ignore[import-not-found, unused-ignore]  # of `make docs`
from mkdocs.structure.files import File, Files  # type: ignore[import-not-found, unused-ignore]  # of `make docs`
from mkdocs.structure.pages import Page  # type: ignore[import-not-found, unused-ignore]  # of `make docs`

import natsctl
from natsctl.cli.main import app

ROOT = Path(__file__).parents[1]
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "development/contributing.md",
    "SECURITY.md": "development/security.md",
    "CHANGELOG.md": "changelog.md",
}
LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml"}
LINK = re.compile(r"(\]\(|src=\")([^)\s\"]+)")
NAMED = re.compile(r"^```(\w+) ([\w.-]+)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SURFACES = {
    "watchers": "Watchers",
    "resource": "Resource",
    "dynamic": "Dynamic watches",
    "managed": "Managed external resources",
    "testing": "Tests (`natsctl.testing`)",
}
READS = ("available", "get", "error", "keys", "items", "by_index", "read")
MEMBERS = {  # of classes that natsctl also uses itself: what users call
    "Controller": (
        *("runtime", "reads", "blocking", "sync_handler", "handle_secondary"),
        *("garbage_secondaries", "start", "clean"),
    ),
    "ControllerRuntime": (
        *("run", "stop", "enqueue_key", "enqueue_key_after", "resync", "sync", "event", "explain"),
        *("status", "owners", "decompose_secondary", "garbage_plan", "collect_garbage"),
    ),
    "Primary": (
        *READS,
        *("put", "create", "update", "delete", "update_status", "last"),
        *("add_finalizer", "remove_finalizer"),
    ),
    "Secondary": (*READS, "apply", "create", "delete", "owned"),
    "KubeSecondary": (*READS, "apply", "create", "delete", "owned"),
    "Tertiary": READS,
    "Reads": ("get", "list"),
    "Kind": (),
    "KvKind": (),
    "KubeKind": (),
    "OwnerNames": (),
    "ManagedReconciler": ("reconcile",),
    "ManagedController": ("reconciler", "start", "clean", "enqueue_key"),
    "Managed": ("key", "external_name", "set_conditions", "condition", "is_going"),
    "AnnotationNames": (),
    "InformerController": (
        *("add_informer", "add_watcher", "remove_watcher", "remove_all_watchers_for_resource"),
        *("start", "clean", "open", "use", "run", "stop", "resync"),
    ),
    "MemoryStore": (
        *("keys", "stored", "fail", "break_watches", "vanish", "recreate", "backup", "restore"),
    ),
    "MemoryStores": ("open", "store"),
    "VirtualTimeLoop": ("time", "jump"),
    "Explanation": (),
    "Status": (),
    "TokenBucket": ("take", "give_back"),
    "ExponentialLimiter": ("delay_s",),
    "RateLimit": (),
}
FOLDERS = {
    "errors": "Errors",
    "model": "Kinds and objects",
    "daemon": "Connections and processes",
    "jetstream": "Connections and processes",
    "kubernetes": "Connections and processes",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for source, place in MOVED.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    for page in (ROOT / "docs").rglob("*.md"):
        for target in _outside(page):
            place = _place(target)
            if place not in files.src_uris:
                files.append(File.generated(config, place, content=_listing(target)))
    files.append(File.generated(config, "reference/commands.md", content=_commands()))
    files.append(File.generated(config, "reference/python.md", content=_names()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make each link lead to the page of its file, and show the names of code blocks."""
    del config, files
    markdown = NAMED.sub(r'```\1 title="\2"', markdown)
    origin = _origin(page.file.src_uri)

    def led(link: re.Match[str]) -> str:
        path, mark, anchor = link[2].partition("#")
        if not path or ":" in path:
            return link[0]
        target = os.path.normpath(PurePosixPath(origin).parent / path)
        place = os.path.relpath(_place(target), PurePosixPath(page.file.src_uri).parent)
        return f"{link[1]}{place}{mark}{anchor}"

    kept = [(block.start(), block.end()) for block in BLOCK.finditer(markdown)]
    return LINK.sub(
        lambda link: link[0] if any(a <= link.start() < b for a, b in kept) else led(link),
        markdown,
    )


def _origin(place: str) -> str:
    """Return the path in the repository of a page of the site."""
    return next((source for source, page in MOVED.items() if page == place), f"docs/{place}")


def _place(target: str) -> str:
    """Return the path in the site of a file of the repository."""
    if target in MOVED:
        return MOVED[target]
    inside = target.removeprefix("docs/")
    return inside if inside != target else f"sources/{target}.md"


def _outside(page: Path) -> Iterator[str]:
    """Return the files outside of docs/ that a page links to."""
    sources = [page, *(ROOT / name for name in MOVED)]
    for source in sources:
        for link in LINK.finditer(BLOCK.sub("", source.read_text())):
            path = link[2].partition("#")[0]
            if not path or ":" in path:
                continue
            target = (source.parent / path).resolve()
            name = str(target.relative_to(ROOT))
            if target.is_file() and not name.startswith("docs/") and name not in MOVED:
                yield name


def _listing(target: str) -> str:
    path = ROOT / target
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {target}\n\n````{language}\n{path.read_text()}````\n"


def _commands() -> str:
    command = typer.main.get_command(app)
    context = command.context_class(command, info_name="natsctl")
    parts = [
        "# Commands",
        "This page is generated from the commands. `natsctl COMMAND --help` shows the same.",
        *_children(command, "natsctl", context),
    ]
    return "\n\n".join(parts)


def _children(command: Any, name: str, context: Any) -> Iterator[str]:
    for child in command.list_commands(context):
        below = command.get_command(context, child)
        if below is not None and not below.hidden:
            inner = below.context_class(below, info_name=child, parent=context)
            yield from _command(below, f"{name} {child}", inner)


def _command(command: Any, name: str, context: Any) -> Iterator[str]:
    yield f"## {name}"
    yield _text(command.help or "")
    if hasattr(command, "list_commands"):
        yield from _children(command, name, context)
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{name} {usage}\n```"
    params = (param.get_help_record(context) for param in command.get_params(context))
    records = [record for record in params if record is not None]
    if records:
        yield _table(("option", "meaning"), records)


def _text(text: str) -> str:
    """Return help text as Markdown; a paragraph that begins with a backspace keeps its lines."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.lstrip().startswith("\b"):
            lines = paragraph.replace("\b", "").strip("\n")
            parts.append(f"```text\n{lines}\n```")
        else:
            parts.append(paragraph.replace("<", "&lt;"))
    return "\n\n".join(parts)


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    for first, second in rows:
        meaning = " ".join(second.split())
        for plain, escaped in (("|", "\\|"), ("<", "&lt;"), ("[", "\\[")):
            meaning = meaning.replace(plain, escaped)
        lines.append(f"| `{first}` | {meaning} |".replace("\n", " "))
    return "\n".join(lines)


def _names() -> str:
    groups: dict[str, list[str]] = {"Controllers": [], "Kinds and objects": []}
    packages = {folder: importlib.import_module(f"natsctl.{folder}") for folder in SURFACES}
    listed = {name for package in packages.values() for name in package.__all__}
    public = natsctl.__all__  # type: ignore[attr-defined]  # `__getattr__` returns it
    for name in sorted(set(public) - listed):
        module = getattr(getattr(natsctl, name), "__module__", "natsctl.core")
        folder = module.removeprefix("natsctl.").partition(".")[0]
        groups.setdefault(FOLDERS.get(folder, "Controllers"), []).append(f"natsctl.{name}")
    for folder, package in packages.items():
        names = [f"natsctl.{folder}.{name}" for name in package.__all__]
        groups[SURFACES[folder]] = names
    parts = [
        "# Python names",
        "Import the names from `natsctl`, and the names for tests from `natsctl.testing`.",
    ]
    for group, names in groups.items():
        parts += [f"## {group}", *map(_reference, names)]
    return "\n\n".join(parts)


def _reference(name: str) -> str:
    """Return the directive that shows a name, and only those members that users call."""
    members = MEMBERS.get(name.rpartition(".")[2])
    if members is None:
        return f"::: {name}"
    shown = f"[{', '.join(members)}]\n      inherited_members: true" if members else "false"
    return f"::: {name}\n    options:\n      members: {shown}"
