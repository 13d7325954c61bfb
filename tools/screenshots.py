"""Takes docs/pictures/console-*.png from a running console: `python tools/screenshots.py`.

It starts a private nats-server with the example controller, stores the objects below, opens the
console in Chromium, and takes a picture of each view.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from daemon import WAIT_S, running  # type: ignore[import-not-found]  # beside this script
from playwright.sync_api import Page, ViewportSize, sync_playwright

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
NATSCTL = (sys.executable, "-m", "natsctl")
RUN = "run --embedded --controller controllers.greetings:Greetings --port 0"
SIZES: tuple[ViewportSize, ...] = ({"width": 1440, "height": 900}, {"width": 400, "height": 800})
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
ORPHAN = {"natsctl.io/owner-kind": "Greeting.greetings", "natsctl.io/owner-key": "nobody"}
OBJECTS = (
    ("defaults", "team-a", {"spec": {"punctuation": "?!"}}),
    *(("greetings", f"team-{team}.{name}", {"spec": {"text": text}})
      for team in "abc"
      for name, text in (("pier", "ahoy"), ("shop", "hi"), ("lobby", "welcome"), ("gate", "hey"))),
    ("greetings", "shop", {"spec": {"text": "hi"}}),
    ("greetings", "shop", {"spec": {"text": "hello", "replicas": 2}}),
    ("greetings", "team-c.desk", {"spec": {"text": ["not", "a", "text"]}}),
    ("routes", "stray", {"metadata": {"labels": ORPHAN, "annotations": ORPHAN},
                         "spec": {"subject": "hello.nobody", "payload": "?"}}),
)  # fmt: skip


def main() -> None:
    """Take all pictures."""
    programs = filter(None, map(shutil.which, ("chromium-headless-shell", "chromium")))
    program = next(programs, "") or sys.exit("there is no chromium: install it")
    options = ["--no-sandbox", "--disable-gpu"]
    with (
        tempfile.TemporaryDirectory() as folder,
        _console(Path(folder)) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=options)
        _take_all(browser.new_page(viewport=SIZES[0]), url)
        browser.close()


def _take_all(page: Page, url: str) -> None:
    page.goto(url)
    _take(page, "home", "table tbody tr")
    page.get_by_role("link", name="greetings").first.click()
    _take(page, "keys", "text=team-a.gate")
    page.get_by_role("link", name="shop", exact=True).click()
    page.locator(".revision").filter(has_text="spec.text").get_by_role("link").click()
    _take(page, "key", ".diff")


@contextmanager
def _console(folder: Path) -> Iterator[str]:
    """Run the controller and the console on the objects; yield the URL of the console."""
    environ = dict(os.environ)
    daemon = (*NATSCTL, *RUN.split())
    with running(daemon, log=folder / "run", folder=ROOT, environ=environ) as nats:
        environ["NATSCTL_SERVER"] = nats
        for bucket, key, value in OBJECTS:
            _run("put", bucket, key, json.dumps(value), "--validate", "ignore", environ=environ)
        _run(
            "pause", "greetings/team-b.gate", "--reason", "waits for the new gate", environ=environ
        )
        log = folder / "console"
        with log.open("wb") as output:
            command = (*NATSCTL, "console", "--port", "0")
            console = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
        try:
            yield _url(log)
        finally:
            console.terminate()
            console.wait(WAIT_S)


def _run(*arguments: str, environ: dict[str, str]) -> None:
    subprocess.run((*NATSCTL, *arguments), check=True, env=environ, stdout=subprocess.DEVNULL)


def _url(log: Path) -> str:
    deadline = time.monotonic() + WAIT_S
    while not (url := re.search(r"http://\S+token=\S+", log.read_text())):
        if time.monotonic() > deadline:
            sys.exit(f"the console did not start:\n{log.read_text()}")
        time.sleep(0.1)
    return url[0]


def _take(page: Page, name: str, shown: str) -> None:
    """Take the pictures of a view once *shown* is there and the page is live."""
    page.locator(shown).first.wait_for()
    page.locator("#live[data-kind=live]").wait_for()
    for size in SIZES:
        for scheme in SCHEMES:
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=PICTURES / f"console-{name}-{size['width']}-{scheme}.png")
    page.set_viewport_size(SIZES[0])


if __name__ == "__main__":
    main()
