"""How far another clock is from ours."""

from datetime import datetime

from natsctl.daemon.doctor.finding import Finding, ok, warning


def skew(
    check: str, before: datetime, theirs: datetime, after: datetime, limit_s: float
) -> Finding:
    """Return how far the clock that said *theirs*, between the other two times, is from ours.

    No more than what is certain is told: an answer that took long says little.
    """
    ahead_s = (theirs - after).total_seconds()
    behind_s = (before - theirs).total_seconds()
    apart_s = max(ahead_s, behind_s, 0.0)
    if apart_s <= limit_s:
        return ok(check, "as ours")
    word = "ahead of" if ahead_s > behind_s else "behind"
    return warning(
        check,
        f"{apart_s:.0f} s {word} ours",
        "set both by NTP: ages, deletion times and credentials that expire go by them",
    )
