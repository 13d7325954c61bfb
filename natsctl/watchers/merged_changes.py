"""What happened to an object, and what several such things come to."""

from typing import Any

import msgspec

from natsctl.model.kinds import Kind
from natsctl.model.store import Store, Stored
from natsctl.watchers.watcher import ResourceAction, Snapshot


class News(msgspec.Struct, frozen=True):
    """One object before and after.

    Both are None for an object that was deleted before anyone here saw it.
    """

    key: str
    kind: Kind[Any]
    store: Store
    before: Stored | None
    after: Stored | None

    @property
    def action(self) -> ResourceAction:
        """Created, updated or deleted."""
        if self.after is None:
            return ResourceAction.DELETE
        return ResourceAction.CREATE if self.before is None else ResourceAction.UPDATE

    @property
    def old(self) -> Snapshot[Any] | None:
        """The object before."""
        return self._snapshot(self.before)

    @property
    def new(self) -> Snapshot[Any] | None:
        """The object now."""
        return self._snapshot(self.after)

    def _snapshot(self, stored: Stored | None) -> Snapshot[Any] | None:
        return None if stored is None else Snapshot(self.kind, stored, self.store)

    def says_more_than(self, other: "News") -> bool:
        """Say whether it is about another action or desire than *other*."""
        if self.action is not other.action:
            return True
        mine, theirs = self.after or self.before, other.after or other.before
        if mine is None or theirs is None:
            return mine is not theirs
        return self.kind.differs(theirs.value, mine.value)


def followed(waiting: tuple[News, ...], news: News) -> tuple[News, ...]:
    """Return what a watcher that has taken none of *waiting* is to be told, once *news* follow.

    At most two things: that an object was deleted, and that it was created anew. An update is
    told from a state from which the object's desire differs, if there is one: a watcher that
    failed halfway must see even that everything is as it was.
    """
    if not waiting:
        return (news,)
    *others, last = waiting
    match last.action, news.action:
        case ResourceAction.DELETE, ResourceAction.DELETE:
            return waiting
        case ResourceAction.DELETE, _:
            return (last, msgspec.structs.replace(news, before=None))
        case _, ResourceAction.DELETE:
            gone = msgspec.structs.replace(news, before=news.before or last.after)
            return tuple(others) or (gone,)
        case ResourceAction.CREATE, _:
            return (*others, msgspec.structs.replace(news, before=None))
        case ResourceAction.UPDATE, _:
            return (_updated(last, news),)


def _updated(last: News, news: News) -> News:
    """Return one update for two, from the older state unless nothing would seem to differ."""
    old, tried, new = last.before, last.after, news.after
    if old is None or tried is None or new is None:
        return news
    reverted = news.kind.differs(old.value, tried.value) and not news.kind.differs(
        old.value, new.value
    )
    return msgspec.structs.replace(news, before=tried if reverted else old)
