"""Measurements, the peer or limit to compare with, and the verdict."""

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

OURS, PEER = "natsctl", "nats-py"
SIDES = (OURS, PEER)


class Samples(msgspec.Struct, frozen=True):
    """The values of one measurement."""

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
    """One line of the table; `ratio` has the ratio of ours to theirs for each round."""

    what: str
    ours: Samples
    peer: str = ""
    theirs: Samples | None = None
    ratio: Samples | None = None
    target: str = ""
    met: bool | None = None


def samples(unit: str, values: Sequence[float]) -> Samples:
    return Samples(tuple(values), unit)


def compared(
    what: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    target: str = "",
    enough: Callable[[float], bool] | None = None,
) -> Row:
    """Compare two sides by rounds; *enough* judges the median ratio."""
    ratio = samples("x", [mine / yours for mine, yours in zip(ours, theirs, strict=True)])
    return Row(
        what=what,
        ours=samples(unit, ours),
        peer=PEER,
        theirs=samples(unit, theirs),
        ratio=ratio,
        target=target,
        met=None if enough is None else enough(ratio.median),
    )


def limited(
    what: str,
    unit: str,
    ours: Sequence[float],
    *,
    target: str,
    enough: Callable[[float], bool],
    peer: str = "",
    theirs: Sequence[float] | None = None,
) -> Row:
    """Compare a measurement with a limit; *enough* judges its median."""
    mine = samples(unit, ours)
    return Row(
        what=what,
        ours=mine,
        peer=peer,
        theirs=None if theirs is None else samples(unit, theirs),
        target=target,
        met=enough(mine.median),
    )


def shown(
    what: str, unit: str, ours: Sequence[float], peer: str = "", theirs: Sequence[float] = ()
) -> Row:
    """Show a measurement, and optionally that of a peer, without a verdict."""
    peer_samples = samples(unit, theirs) if theirs else None
    return Row(what=what, ours=samples(unit, ours), peer=peer, theirs=peer_samples)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text, one line each."""
    cells = [("", "natsctl (spread)", "peer", "ratio (spread)", "target", "")]
    for row in rows:
        peer_cell = f"{row.peer} {row.theirs}" if row.theirs else ""
        verdict = "" if row.met is None else "met" if row.met else "MISSED"
        ratio = str(row.ratio) if row.ratio else ""
        cells.append((row.what, str(row.ours), peer_cell, ratio, row.target, verdict))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _short(value: float) -> str:
    """Return three significant digits, or all digits of a large number."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
