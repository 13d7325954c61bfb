"""The files of the page, and the URLs that show it."""

from pathlib import Path

from natsctl.errors import NotFoundError

FOLDER = Path(__file__).parents[1] / "page"
VIEWS = ("", "keys", "key", "garbage", "members", "buckets")
"""The first part of each URL that the page itself routes."""

TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def content_of(path: str) -> tuple[bytes, str]:
    """Return the content and the type of the file at a URL's path; raises `NotFoundError`."""
    names = path.strip("/").split("/")
    file = FOLDER / "index.html" if names[0] in VIEWS else FOLDER.joinpath(*names)
    if ".." in names or file.suffix not in TYPES or not file.is_file():
        raise NotFoundError(f"the console has no page {path}")
    return file.read_bytes(), TYPES[file.suffix]
