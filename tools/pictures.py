"""Draws docs/pictures/*.svg from the TOML files beside them: `python tools/pictures.py`.

A file has a `title`, `rows` of box names (an empty name leaves a place free), `[boxes]` with the
text of each box (the lines after the first are small), and `[arrows]` such as `"a -> b" = "text"`.
`"a -- b"` is a line without a head.
"""

import re
import tomllib
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
LARGE, SMALL = 9.0, 6.9  # the width of a character, in pixels
LINE = 17
GAP_X, GAP_Y, MARGIN = 78, 46, 14
STYLE = """
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.box { fill: #eef4fb; stroke: #3b6ea5; stroke-width: 1.2; }
.name { fill: #14283c; font-size: 14px; font-weight: 600; }
.more { fill: #4a5a6a; font-size: 12px; }
.line { stroke: #5b6b7b; stroke-width: 1.4; fill: none; }
.head { fill: #5b6b7b; }
.label, .halo { fill: #36475a; font-size: 12px; }
.halo { stroke: #ffffff; stroke-width: 5px; }
@media (prefers-color-scheme: dark) {
  .box { fill: #1b2b3c; stroke: #7fb0e4; }
  .name { fill: #e8f0f8; }
  .more { fill: #b4c2d0; }
  .line { stroke: #a0b0c0; }
  .head { fill: #a0b0c0; }
  .label, .halo { fill: #d0dce8; }
  .halo { stroke: #14202c; }
}
"""
HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
    'markerHeight="8" orient="auto-start-reverse"><path class="head" d="M0 0L8 4L0 8z"/>'
    "</marker></defs>"
)


class Box(NamedTuple):
    """A box: its centre, its size and its lines of text."""

    x: float
    y: float
    width: float
    height: float
    lines: list[str]

    def edge(self, other: "Box") -> tuple[float, float]:
        """Return the point of the border from which a line to the other box starts."""
        dx, dy = other.x - self.x, other.y - self.y
        if abs(dy) < 1:
            return self.x + (self.width / 2) * (1 if dx > 0 else -1), self.y
        half = self.width / 2 - 12
        x = self.x if abs(dx) < 1 else self.x + max(-half, min(half, dx / 3))
        return x, self.y + (self.height / 2) * (1 if dy > 0 else -1)


def draw(source: str) -> str:
    """Return the SVG of a picture."""
    picture = tomllib.loads(source)
    boxes, width, height = _places(picture["rows"], picture["boxes"])
    title = escape(picture["title"])
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        HEAD,
        *(_box(box) for box in boxes.values()),
    ]
    for names, label in picture.get("arrows", {}).items():
        first, kind, second = re.split(r"\s+(--|->|<->)\s+", names)
        parts.append(_arrow(boxes[first], boxes[second], kind, label))
    return "\n".join((*parts, "</svg>", ""))


def _places(rows: list[list[str]], texts: dict[str, str]) -> tuple[dict[str, Box], float, float]:
    """Return the boxes on a grid whose columns are as wide as their widest box."""
    columns = max(map(len, rows))
    widths = [
        max(
            (_size(texts[row[column]])[0] for row in rows if column < len(row) and row[column]),
            default=40,
        )
        for column in range(columns)
    ]
    boxes: dict[str, Box] = {}
    y: float = MARGIN
    for row in rows:
        tall = max(_size(texts[name])[1] for name in row if name)
        for column, name in enumerate(row):
            if name:
                x = MARGIN + sum(widths[:column]) + GAP_X * column + widths[column] / 2
                boxes[name] = Box(x, y + tall / 2, widths[column], tall, texts[name].split("\n"))
        y += tall + GAP_Y
    return boxes, 2 * MARGIN + sum(widths) + GAP_X * (columns - 1), y - GAP_Y + MARGIN


def _size(text: str) -> tuple[float, float]:
    name, *later_lines = text.split("\n")
    width = max([len(name) * LARGE, *(len(line) * SMALL for line in later_lines)])
    return width + 24, LINE * (1 + len(later_lines)) + 16


def _box(box: Box) -> str:
    left, top = box.x - box.width / 2, box.y - box.height / 2
    size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
    parts = [f'<rect class="box" x="{left:.1f}" y="{top:.1f}" {size} rx="6"/>']
    y = box.y - LINE * (len(box.lines) - 1) / 2 + 5
    for number, line in enumerate(box.lines):
        style = "more" if number else "name"
        parts.append(
            f'<text class="{style}" x="{box.x:.1f}" y="{y + number * LINE:.1f}" '
            f'text-anchor="middle">{escape(line)}</text>'
        )
    return "".join(parts)


def _arrow(first: Box, second: Box, kind: str, label: str) -> str:
    (x1, y1), (x2, y2) = first.edge(second), second.edge(first)
    head = "" if kind == "--" else ' marker-end="url(#head)"'
    tail = ' marker-start="url(#head)"' if kind == "<->" else ""
    line = (
        f'<line class="line" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{head}{tail}/>'
    )
    if not label:
        return line
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    if abs(y1 - y2) < 1:
        position = f'x="{x:.1f}" y="{y - 7:.1f}" text-anchor="middle"'
    else:
        position = f'x="{x + 8:.1f}" y="{y + 4:.1f}" text-anchor="start"'
    texts = (
        f'<text class="{css_class}" {position}>{escape(label)}</text>'
        for css_class in ("halo", "label")
    )
    return line + "".join(texts)


def main() -> None:
    """Draw every picture."""
    for source in sorted(PICTURES.glob("*.toml")):
        source.with_suffix(".svg").write_text(draw(source.read_text()))


if __name__ == "__main__":
    main()
