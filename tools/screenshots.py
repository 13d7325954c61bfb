"""Takes docs/pictures/console-*.png from a running console: `python tools/screenshots.py`.

It starts a private nats-server with the controllers below, some of whose keys are in trouble, opens
the console in Chromium, and takes pictures of each view: in two sizes, light and dark.
"""

import asyncio
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
from nats import connect
from playwright.sync_api import Page, ViewportSize, sync_playwright

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
NATSCTL = (sys.executable, "-m", "natsctl")
FLEET = """
import msgspec

from natsctl import Controller, Object, kv, primary, secondary


class Spec(msgspec.Struct, frozen=True):
    image: str = ""
    copies: int = 1


class Site(Object, frozen=True):
    spec: Spec


class Page(Object, frozen=True):
    spec: Spec


class Sites(Controller):
    sites = primary(kv(Site, bucket="sites"))
    pages = secondary(kv(Page, bucket="pages"))

    async def sync_handler(self, key: str) -> None:
        site = self.sites.get(key)
        if site is None:
            return
        for copy in range(site.spec.copies):
            await self.pages.apply(f"{key}.{copy}", Page(spec=site.spec))
        if site.spec.image.startswith("broken"):
            image = site.spec.image
            raise RuntimeError(f"registry.example answered 503 for image {image} of {key}")
        if site.spec.image == "slow":
            raise TimeoutError(f"no answer from {key} in 5 s")


class Invoices(Controller):
    invoices = primary(kv(Object, bucket="invoices"))

    async def sync_handler(self, key: str) -> None:
        pass


class Backups(Controller):
    backups = primary(kv(Site, bucket="backups"))

    async def sync_handler(self, key: str) -> None:
        pass
"""
RUN = "run --port 0 --embedded --controller fleet:Sites --controller fleet:Invoices"
IMAGES = {3: "broken:3", 7: "slow", 20: "broken:9", 23: "slow", 31: "broken:4"}
SIZES: tuple[ViewportSize, ...] = ({"width": 1440, "height": 900}, {"width": 400, "height": 800})
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


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
    _take(page, "home", "text=3 keys")
    page.get_by_role("link", name="sites", exact=True).first.click()
    _take(page, "keys", "text=eu.shop-003")
    page.get_by_role("link", name="eu.shop-003", exact=True).click()
    page.get_by_text("Traceback").click()
    _take(page, "key", "text=in Sites.sync_handler")


@contextmanager
def _console(folder: Path) -> Iterator[str]:
    """Run the controller and the console on the objects; yield the URL of the console."""
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    (folder / "fleet.py").write_text(FLEET)
    daemon = (*NATSCTL, *RUN.split())
    with running(daemon, log=folder / "run", folder=folder, environ=environ) as nats:
        environ["NATSCTL_SERVER"] = nats
        asyncio.run(_fill(nats))
        once = (*NATSCTL, "run", "--controller", "fleet:Backups")
        with running(once, log=folder / "once", folder=folder, environ=environ):
            pass  # it has left its schema, so it's missed when it's down
        pause = ("pause", "sites/eu.shop-012", "--reason", "waits for a disk")
        subprocess.run((*NATSCTL, *pause), check=True, env=environ, stdout=subprocess.DEVNULL)
        log = folder / "console"
        with log.open("wb") as output:
            command = (*NATSCTL, "console", "--port", "0")
            console = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
        try:
            yield _url(log)
        finally:
            console.terminate()
            console.wait(WAIT_S)


async def _fill(nats: str) -> None:
    client = await connect(nats)
    sites = await client.jetstream().key_value("sites")
    for number in range(40):
        spec = {"image": IMAGES.get(number, "web:2"), "copies": 2}
        await sites.put(f"eu.shop-{number:03}", json.dumps({"spec": spec}).encode())
    await sites.put("us.shop-001", b'{"spec": {"image": 7}}')
    invoices = await client.jetstream().key_value("invoices")
    for number in range(30):
        await invoices.put(f"i{number:05}", b'{"spec": {}}')
    await client.close()


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
