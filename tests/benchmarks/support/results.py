"""Measurements, the peer or limit to compare with, and the verdict."""

from collections.abc import Sequence
from statistics import median

import msgspec
from msgspec.structs import replace

OURS, PEER, JSON_PEER = "natsctl", "naive", "naive, json"
SIDES = (OURS, PEER)
ALL_SIDES = (*SIDES, JSON_PEER)
BARE = "bare"  # a socket whose messages are decoded and handled

# Go is not run here: these are its rates as multiples of the naive loop's, with nats.go and the
# work queue of client-go, four workers, on two cores of the machines that natsctl is measured on.
GO_COLD, GO_LIVE = 3.1, 1.6
GO_KUBE = 1.3  # client-go's rate of server-side applies, as a multiple of bare aiohttp's


class Samples(msgspec.Struct, frozen=True):
    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{_short(self.median)} {self.unit}"
        spread = f"({_short(min(self.values))}..{_short(max(self.values))})"
        return f"{_short(self.median)} {self.unit} {spread}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table; `ratio` has the ratio of ours to theirs for each round.

    `go` is the ratio of Go to the peer, measured elsewhere.
    """

    label: str
    ours: Samples
    peer: str = ""
    theirs: Samples | None = None
    ratio: Samples | None = None
    go: float | None = None
    target: str = ""
    met: bool | None = None


def samples(unit: str, values: Sequence[float]) -> Samples:
    return Samples(tuple(values), unit)


def shown(
    label: str, unit: str, ours: Sequence[float], peer: str = "", theirs: Sequence[float] = ()
) -> Row:
    peer_samples = samples(unit, theirs) if theirs else None
    return Row(label=label, ours=samples(unit, ours), peer=peer, theirs=peer_samples)


def compared(
    label: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    peer: str = PEER,
    go: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Row:
    """Compare two sides by rounds; the limits are for the median ratio."""
    ratio = samples("x", [mine / yours for mine, yours in zip(ours, theirs, strict=True)])
    row = replace(shown(label, unit, ours, peer, theirs), ratio=ratio, go=go)
    if at_least is not None:
        return replace(row, target=f">= {at_least:g}x", met=ratio.median >= at_least)
    if at_most is not None:
        return replace(row, target=f"<= {at_most:g}x", met=ratio.median <= at_most)
    return row


def limited(
    label: str,
    unit: str,
    ours: Sequence[float],
    peer: str = "",
    theirs: Sequence[float] = (),
    *,
    at_most: float,
) -> Row:
    """Compare the median of a measurement with a limit."""
    row = shown(label, unit, ours, peer, theirs)
    return replace(row, target=f"<= {at_most:g} {unit}", met=row.ours.median <= at_most)


def table(rows: Sequence[Row]) -> str:
    header = ("", "natsctl (spread)", "peer", "ratio (spread)", "Go", "target", "")
    cells = [header, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, str, str, str, str, str, str]:
    peer = f"{row.peer} {row.theirs}" if row.theirs else ""
    ratio = str(row.ratio) if row.ratio else ""
    go = "" if row.go is None else f"{row.go:g}x"
    verdict = "" if row.met is None else "met" if row.met else "MISSED"
    return row.label, str(row.ours), peer, ratio, go, row.target, verdict


def _short(value: float) -> str:
    """Return three significant digits, or all digits of a large number."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
