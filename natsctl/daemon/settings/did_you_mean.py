"""Suggests a known name for a misspelled one."""

from collections.abc import Collection

BEGINNING_MIN = 3  # characters of an incomplete name


def did_you_mean(name: str, known: Collection[str], *, prefix: str = "") -> str:
    """Return `; did you mean x?` if a known name is near *name*, else an empty text.

    A known name is near if it begins with *name*, or if at most a third of the characters are
    wrong, missing, added or swapped. *prefix* is printed before the known name.
    """
    typed = name.lower()
    near: dict[str, int] = {}
    if len(typed) >= BEGINNING_MIN:
        near = {
            candidate: len(candidate) for candidate in known if candidate.lower().startswith(typed)
        }
    near = near or _similar(typed, known)
    if not near:
        return ""
    return (
        f"; did you mean {prefix}{min(near, key=lambda candidate: (near[candidate], candidate))}?"
    )


def _similar(typed: str, known: Collection[str]) -> dict[str, int]:
    """Return the names within a distance of a third of the characters, with their distances."""
    limit = len(typed) // 3
    candidates = (candidate for candidate in known if abs(len(candidate) - len(typed)) <= limit)
    distances = {candidate: edit_distance(typed, candidate.lower()) for candidate in candidates}
    return {candidate: distance for candidate, distance in distances.items() if distance <= limit}


def edit_distance(word: str, target: str) -> int:
    """Return how many characters differ, are missing, are added, or are swapped with the next.

    This is the optimal string alignment distance.
    """
    row_before: list[int] = []
    row = list(range(len(target) + 1))
    for i, character in enumerate(word, 1):
        row_before_that, row_before, row = row_before, row, [i]
        for j, expected in enumerate(target, 1):
            distances = [
                row_before[j] + 1,
                row[-1] + 1,
                row_before[j - 1] + (character != expected),
            ]
            if i > 1 and j > 1 and word[i - 2 : i] == expected + target[j - 2]:
                distances.append(row_before_that[j - 2] + 1)
            row.append(min(distances))
    return row[-1]
