"""Finds the known name that a person may have meant."""

from collections.abc import Collection

BEGINNING_MIN = 3  # characters of a name that is not typed to its end


def did_you_mean(name: str, known: Collection[str], *, prefix: str = "") -> str:
    """Return `; did you mean x?` if something known is near *name*, else nothing.

    *prefix* is shown before the known name.

    A name is near if it begins with *name*, or if at most a third of its characters are wrong,
    missing, too many or swapped.
    """
    typed = name.lower()
    near: dict[str, int] = {}
    if len(typed) >= BEGINNING_MIN:
        near = {other: len(other) for other in known if other.lower().startswith(typed)}
    near = near or _alike(typed, known)
    if not near:
        return ""
    return f"; did you mean {prefix}{min(near, key=lambda other: (near[other], other))}?"


def _alike(typed: str, known: Collection[str]) -> dict[str, int]:
    """Return the names that differ in a third of their characters at most, and in how many."""
    limit = len(typed) // 3
    sized = (other for other in known if abs(len(other) - len(typed)) <= limit)
    distances = {other: distance_of(typed, other.lower()) for other in sized}
    return {other: distance for other, distance in distances.items() if distance <= limit}


def distance_of(one: str, other: str) -> int:
    """Return how many characters have to be changed, added, removed or swapped with the next."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for number, character in enumerate(one, 1):
        before, above, row = row, before, [number]
        for place, wanted in enumerate(other, 1):
            ways = [before[place] + 1, row[-1] + 1, before[place - 1] + (character != wanted)]
            if number > 1 and place > 1 and one[number - 2 : number] == wanted + other[place - 2]:
                ways.append(above[place - 2] + 1)
            row.append(min(ways))
    return row[-1]
