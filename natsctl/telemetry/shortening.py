"""Cuts a long text in the middle: the reason of an error is often at its end."""

ELLIPSIS = " … "


def shortened(text: str, limit: int) -> str:
    """Return *text* in at most *limit* characters: its beginning and its end."""
    if len(text) <= limit:
        return text
    kept = limit - len(ELLIPSIS)
    end = kept // 2
    return f"{text[: kept - end]}{ELLIPSIS}{text[-end:]}"
