"""How a process runs its controllers."""

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a person may set; every default is here.

    Attributes:
        workers: how many keys each controller syncs at once; None leaves it to the controller.
        resync_s: each primary is visited again once per so many seconds; None likewise.
        stop_timeout_s: how long syncs under way may go on after a stop was asked for.
    """

    workers: int | None = None
    resync_s: float | None = None
    stop_timeout_s: float = 25.0
