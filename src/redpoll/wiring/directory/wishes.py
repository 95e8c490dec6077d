"""What a client of the directory wants of it: names to have, names to know of. Sans-IO.

It outlives every link, and every run of the directory: after each hello all of it is asked for again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from redpoll.errors import WiringError
from redpoll.wiring.directory.entries import Entry, Key
from redpoll.wiring.directory.protocol import Item
from redpoll.wiring.directory.table import Outcome, Seen, Verdict

__all__ = ["MAX_NAMES", "Registration", "Standing", "Watch", "Wishes"]

#: Names that one client may register, and watch; as many as a directory takes of one.
MAX_NAMES = 10_000

_logger = logging.getLogger("redpoll.wiring")


class Standing(Enum):
    """How a registration stands."""

    ASKED = "asked"
    """The directory has not answered yet, since it was asked or since it was started again."""
    HELD = "held"
    """The name is ours."""
    LOST = "lost"
    """It is not: another owner has it, most likely."""


class Registration:
    """A name that is to be had.

    Attributes:
        item: What is registered.
        standing: How that stands.
        confirmed: Whether the name was ever ours.
    """

    __slots__ = ("confirmed", "item", "standing")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.standing = Standing.ASKED
        self.confirmed = False


class Watch:
    """A name that somebody wants to know of, until `cancel`.

    Attributes:
        key: Kind and name.
        entry: What was told last; None: nobody has the name, as far as is known.
        known: Whether anything was told yet.
    """

    __slots__ = ("_callback", "_wishes", "entry", "key", "known")

    def __init__(self, wishes: Wishes, key: Key, callback: Callable[[Entry | None], object]) -> None:
        self._wishes = wishes
        self._callback = callback
        self.key = key
        self.entry: Entry | None = None
        self.known = False

    def cancel(self) -> None:
        """Hear no more of it. Does nothing the second time."""
        self._wishes.unwatch(self)

    def _tell(self, entry: Entry | None) -> None:
        if self.known and entry == self.entry:
            return
        self.entry = entry
        self.known = True
        try:
            self._callback(entry)
        except (Exception, asyncio.CancelledError):
            _logger.exception("what watches the %s %r raised", *self.key)


class _Watched:
    """One name that is watched, once for all who do.

    Attributes:
        watches: Those who do.
        seen: What was seen last over this link; None: nothing yet.
    """

    __slots__ = ("seen", "watches")

    def __init__(self) -> None:
        self.watches: dict[Watch, None] = {}
        self.seen: Seen | None = None


class Wishes:
    """All that one client wants.

    Args:
        unwatched: Called with a name that nobody watches any more.
    """

    def __init__(self, unwatched: Callable[[Key], object]) -> None:
        self._unwatched = unwatched
        self.registrations: dict[Key, Registration] = {}
        self._watched: dict[Key, _Watched] = {}

    def begin(self) -> None:
        """There is a new link: nothing that was told over the former one holds."""
        for registration in self.registrations.values():
            if registration.standing is Standing.HELD:
                registration.standing = Standing.ASKED
        for watched in self._watched.values():
            watched.seen = None

    # Names to have

    def register(self, item: Item) -> Registration:
        """Want a name.

        Raises:
            WiringError: There are too many.
        """
        if item.key not in self.registrations and len(self.registrations) >= MAX_NAMES:
            raise WiringError(f"one client registers at most {MAX_NAMES:,} names")
        registration = self.registrations[item.key] = Registration(item)
        return registration

    def drop(self, registration: Registration) -> bool:
        """Want a name no more; False, if it was registered once more meanwhile: then it is wanted still."""
        if self.registrations.get(registration.item.key) is not registration:
            return False
        del self.registrations[registration.item.key]
        return True

    def answered(self, registration: Registration, verdict: Verdict) -> bool:
        """The directory has answered: True if this is the first to be heard of a name's loss."""
        if verdict.outcome is Outcome.REGISTERED:
            registration.standing = Standing.HELD
            registration.confirmed = True
            return False
        lost = registration.confirmed and registration.standing is not Standing.LOST
        registration.standing = Standing.LOST
        return lost

    @property
    def count(self) -> int | None:
        """How many names are ours; None while there is one of which that is not known."""
        standings = [each.standing for each in self.registrations.values()]
        return None if Standing.ASKED in standings else standings.count(Standing.HELD)

    @property
    def lost(self) -> list[Registration]:
        """Those that were ours and are others' now."""
        return [each for each in self.registrations.values() if each.standing is Standing.LOST and each.confirmed]

    # Names to know of

    @property
    def watched(self) -> list[Key]:
        """The names that are watched."""
        return list(self._watched)

    @property
    def unseen(self) -> list[Key]:
        """Those of which nothing was seen over this link."""
        return [key for key, watched in self._watched.items() if watched.seen is None]

    def watch(self, key: Key, callback: Callable[[Entry | None], object]) -> tuple[Watch, bool]:
        """Want to know of a name.

        Returns:
            What stands for that, and whether nobody wanted to know of it before.

        Raises:
            WiringError: There are too many.
        """
        watched = self._watched.get(key)
        new = watched is None
        if watched is None:
            if len(self._watched) >= MAX_NAMES:
                raise WiringError(f"one client watches at most {MAX_NAMES:,} names")
            watched = self._watched[key] = _Watched()
        watch = Watch(self, key, callback)
        watched.watches[watch] = None
        return watch, new

    def remind(self, watch: Watch) -> None:
        """Tell one of those who watch what the others know already."""
        watched = self._watched.get(watch.key)
        if watched is not None and watch in watched.watches and watched.seen is not None and _tells(watched.seen):
            watch._tell(watched.seen.entry)

    def unwatch(self, watch: Watch) -> None:
        """Somebody does not want to know of a name any more."""
        watched = self._watched.get(watch.key)
        if watched is None or watched.watches.pop(watch, watch) is not None:
            return
        if not watched.watches:
            del self._watched[watch.key]
            self._unwatched(watch.key)

    def saw(self, key: Key, seen: Seen) -> None:
        """Something is known of a name: tell those who watch it, unless they know better."""
        watched = self._watched.get(key)
        if watched is None or (watched.seen is not None and watched.seen.revision >= seen.revision):
            return
        watched.seen = seen
        if _tells(seen):
            for watch in list(watched.watches):
                if watch in watched.watches:
                    watch._tell(seen.entry)


def _tells(seen: Seen) -> bool:
    """Whether what was seen says anything: not in a directory's first lease, that nobody has a name."""
    return seen.known or seen.entry is not None
