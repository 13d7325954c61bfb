"""Decides whether a failed creation may have created the external resource."""

from collections.abc import Iterator

from natsctl.errors import HandlerError, StoreTimeoutError

_LOST = (
    *(TimeoutError, StoreTimeoutError, HandlerError),
    *(ConnectionResetError, ConnectionAbortedError, BrokenPipeError),
)
"""Errors after which the other system may have done what was requested."""


def may_have_created(error: Exception) -> bool:
    """Return whether the resource may exist: an answer may be lost.

    Libraries raise their own errors, whose causes are a timeout or a lost connection. An error
    raised `from None` has no cause. A time limit of a connect, such as `ConnectTimeout`, ends
    before anything is requested.
    """
    if isinstance(error, _LOST):
        return True
    causes = list(_causes(error))
    if any(_is_connect_timeout(type(cause).__name__) for cause in causes):
        return False
    return any(isinstance(cause, _LOST) for cause in causes)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of that, and so on."""
    seen_ids = set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen_ids:
        seen_ids.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _is_connect_timeout(name: str) -> bool:
    return "Connect" in name and "Timeout" in name
