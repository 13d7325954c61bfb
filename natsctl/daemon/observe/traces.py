"""Whether the spans of this process are sent anywhere."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from natsctl.daemon.settings.settings import TraceSettings
from natsctl.errors import UsageError


@asynccontextmanager
async def traced(settings: TraceSettings) -> AsyncIterator[None]:
    """Send spans as *settings* say, for as long as the context lasts; see `otlp.sending`.

    Raises `UsageError` where what that takes is not installed.
    """
    if settings.otlp is None:
        yield
        return
    try:
        from natsctl.daemon.observe.otlp import sending  # noqa: PLC0415 - it takes a tenth of a second
    except ModuleNotFoundError as error:
        raise UsageError(
            f"to send spans takes the extra otlp ({error.name} is missing): "
            "pip install 'natsctl[otlp]'"
        ) from error
    async with sending(settings.otlp):
        yield
