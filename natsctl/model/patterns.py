"""Which keys a NATS subject pattern takes in."""

import re


def matches(pattern: str, key: str) -> bool:
    """Say whether *key* matches the subject pattern *pattern* (`*` one token, `>` the rest)."""
    if pattern == ">":
        return True
    regex = re.escape(pattern).replace(r"\*", r"[^.]+")
    regex = regex[:-1] + ".+" if regex.endswith(">") else regex
    return re.fullmatch(regex, key) is not None
