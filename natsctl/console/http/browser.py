"""Opens the page in the user's browser."""

import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path


@contextmanager
def open_in_browser(url: str) -> Iterator[None]:
    """Open *url* in the browser, through a file that lasts as long as the context.

    Only this user can read the file. As an argument of the browser's process, the URL and its
    token would be visible to every user of the machine.
    """
    with tempfile.TemporaryDirectory(prefix="natsctl-console-") as folder:
        file = Path(folder) / "console.html"
        file.touch(mode=0o600)
        file.write_text(f'<meta http-equiv="refresh" content="0; url={escape(url)}">\n')
        # a text browser ends when its user quits, so nothing waits for it
        threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
        yield
