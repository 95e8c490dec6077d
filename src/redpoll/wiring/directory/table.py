"""The table of a directory: who has which name, for how long, and who wants to know.

Sans-IO: time comes in as an argument, one next deadline goes out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from redpoll.wiring.directory.entries import Entry, Key

__all__ = ["Bounds", "Holder", "Outcome", "Seen", "Table", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a table holds.

    Attributes:
        entries: Names of one client.
        watches: Names that one client watches.
        all_entries: Names of all clients.
        all_watches: The same of watches.
    """

    entries: int = 10_000
    watches: int = 10_000
    all_entries: int = 200_000
    all_watches: int = 200_000


class Outcome(Enum):
    """What became of a registration."""

    REGISTERED = 0
    TAKEN = 1
    """Another owner has the name."""
    FULL = 2
    """A bound was reached."""
    LOOPBACK = 3
    """The address is for its own machine alone, and the directory is on another."""
    NOWHERE = 4
    """Nobody can dial the address."""


class Verdict(NamedTuple):
    """What became of a registration, and why not if it failed.

    Attributes:
        outcome: In short.
        free_in: Of a name that is taken by an owner that is gone: seconds until its lease is over. None: it is there.
        limit: The bound that was reached.
    """

    outcome: Outcome
    free_in: float | None = None
    limit: int = 0


class Seen(NamedTuple):
    """What the table knows of a name at a moment.

    Attributes:
        revision: Grows with each look: of two the one with the greater was later.
        entry: Who has it; None: nobody.
        known: Whether it is known who has it: that nobody does is not in the first lease of a table, while owners come back,
            unless somebody gave it up.
    """

    revision: int
    entry: Entry | None
    known: bool


class Holder:
    """A client of the directory, from its hello until its lease is over.

    Attributes:
        client: Names the client; one that comes again over a new link has the same.
        run: Its number among the runs of its owner.
        linked: Whether its link is there.
        expires: When its lease is over, unless it renews it.
        keys: What it has.
        watches: What it wants to know of.
        news: What it was not told yet.
        again: Whether something was taken from it, so that it is to register all of it again.
    """

    __slots__ = ("again", "client", "expires", "keys", "linked", "news", "run", "watches")

    def __init__(self, client: bytes, run: int, expires: float) -> None:
        self.client = client
        self.run = run
        self.linked = True
        self.expires = expires
        self.keys: dict[Key, Entry] = {}
        self.watches: set[Key] = set()
        self.news: dict[Key, None] = {}
        self.again = False


_REGISTERED = Verdict(Outcome.REGISTERED)


class Table:
    """Names, their owners and those who watch them.

    Args:
        now: The time, in seconds of any clock that goes forward.
        lease: Seconds that an owner which is not heard of keeps its names.
        grace: Seconds from now in which a name that nobody has may belong to somebody who is coming back.
        static: Entries that are there from the start and never expire; a registration goes before them.
        bounds: How much it holds.

    Attributes:
        restless: Holders that something is to be told of, for the owner of the table to empty.
    """

    def __init__(
        self, now: float, *, lease: float, grace: float, static: Iterable[Entry] = (), bounds: Bounds | None = None
    ) -> None:
        self.lease = lease
        self.restless: dict[Holder, None] = {}
        self._bounds = bounds or Bounds()
        self._static = {entry.key: replace(entry, static=True) for entry in static}
        self._owners: dict[Key, Holder] = {}
        self._watchers: dict[Key, dict[Holder, None]] = {}
        self._watch_count = 0
        #: Those who have something, or are there; by client, of which one may be here over several links.
        self._clients: dict[bytes, dict[Holder, None]] = {}
        self._settles: float | None = now + grace
        #: Names that somebody had and gave up before that.
        self._given_up: set[Key] = set()
        self._revision = 0
        #: All names in order; None: not known now.
        self._order: list[Key] | None = None
        self.expire(now)

    # Clients

    def join(self, now: float, client: bytes, run: int) -> Holder:
        """A client is there, over a new link: it has nothing yet."""
        holder = Holder(client, run, now + self.lease)
        self._clients.setdefault(client, {})[holder] = None
        return holder

    def renew(self, now: float, holder: Holder, count: int | None) -> bool:
        """A client is still there.

        Args:
            now: The time.
            holder: Which one.
            count: How many names it has; None: it does not know.

        Returns:
            Whether that is so; False: it is to join again and to register all that it has.
        """
        holder.expires = now + self.lease
        return count is None or count == len(holder.keys)

    def settle(self, holder: Holder) -> None:
        """A client has registered all it has: what its former links left behind is gone."""
        for other in [each for each in self._clients.get(holder.client, ()) if each is not holder]:
            self._clear(other)

    def lose(self, now: float, holder: Holder, *, back: bool = False) -> None:
        """The link to a client is lost: its names are suspect, and its lease begins to run out.

        Args:
            now: The time.
            holder: Which one.
            back: Whether it is there again already: then its names are not suspect.
        """
        if not holder.linked:
            return
        holder.linked = False
        holder.expires = now + self.lease
        for key in list(holder.watches):
            self.unwatch(holder, key)
        self._hush(holder)
        for key, entry in holder.keys.items() if not back else ():
            holder.keys[key] = replace(entry, suspect=True)
            self._changed(key)
        self._drop_if_empty(holder)

    def leave(self, holder: Holder) -> None:
        """A client has gone for good, with all it had."""
        holder.linked = False
        self._drop(holder)

    # Names

    def register(self, now: float, holder: Holder, entry: Entry) -> Verdict:
        """Give a name to a client, or another address to what it has.

        It goes from one that has it to the same client over a new link; to a later run of the same owner; and, once the
        link to who has it is lost, to any run of that owner, and to whoever is at its address now.
        """
        key = entry.key
        former = self._owners.get(key)
        bounds = self._bounds
        holder.expires = now + self.lease
        if former is not None and former is not holder and not self._yields(former, holder, entry):
            return Verdict(Outcome.TAKEN, None if former.linked else max(former.expires - now, 0.0))
        if former is not holder and len(holder.keys) >= bounds.entries:
            return Verdict(Outcome.FULL, limit=bounds.entries)
        if former is None and len(self._owners) >= bounds.all_entries:
            return Verdict(Outcome.FULL, limit=bounds.all_entries)
        before = self._entry(key)
        if former is not None and former is not holder:
            del former.keys[key]
            if former.linked and former.client != holder.client:
                former.again = True
                self.restless[former] = None
            self._drop_if_empty(former)
        if before is None:
            self._order = None
        self._owners[key] = holder
        holder.keys[key] = entry
        if before != entry:
            self._changed(key)
        return _REGISTERED

    @staticmethod
    def _yields(former: Holder, holder: Holder, entry: Entry) -> bool:
        """Whether who has a name gives it up for another client."""
        if former.client == holder.client:
            return True
        held = former.keys[entry.key]
        if held.identity is not None and held.identity == entry.identity:
            return holder.run > former.run or not former.linked
        # Nobody else can listen where the newcomer does.
        return held.address == entry.address and not former.linked

    def unregister(self, holder: Holder, key: Key) -> bool:
        """Take a name from a client; False: it has not got it."""
        if key not in holder.keys:
            return False
        self._remove(holder, key)
        self._drop_if_empty(holder)
        return True

    # Looking

    def look(self, now: float, key: Key) -> Seen:
        """What is known of a name."""
        self._revision += 1
        entry = self._entry(key)
        settled = self._settles is None or now >= self._settles or key in self._given_up
        return Seen(self._revision, entry, entry is not None or settled)

    def watch(self, holder: Holder, key: Key) -> bool:
        """Tell a client of a name from now on; False: a bound was reached."""
        if key in holder.watches:
            return True
        if len(holder.watches) >= self._bounds.watches or self._watch_count >= self._bounds.all_watches:
            return False
        holder.watches.add(key)
        self._watchers.setdefault(key, {})[holder] = None
        self._watch_count += 1
        return True

    def unwatch(self, holder: Holder, key: Key) -> None:
        """Tell a client of a name no longer."""
        if key not in holder.watches:
            return
        holder.watches.discard(key)
        holder.news.pop(key, None)
        self._watch_count -= 1
        watchers = self._watchers[key]
        del watchers[holder]
        if not watchers:
            del self._watchers[key]

    def take_news(self, now: float, holder: Holder, most: int) -> list[tuple[Key, Seen]]:
        """What a client is to be told now, in the order in which it happened, at most so much; of each name the latest."""
        keys = [key for key, _ in zip(holder.news, range(most), strict=False)]
        for key in keys:
            del holder.news[key]
        return [(key, self.look(now, key)) for key in keys]

    def give_back(self, holder: Holder, keys: Iterable[Key]) -> None:
        """What a client was not told after all is told with the next news."""
        holder.news.update(dict.fromkeys(key for key in keys if key in holder.watches))

    def page(self, after: Key | None, most: int) -> list[Entry]:
        """Names that somebody has, in order: at most so many of those behind one of them, or, with None, the first."""
        if self._order is None:
            self._order = sorted({*self._owners, *self._static})
        first = 0 if after is None else bisect_right(self._order, after)
        return [entry for key in self._order[first : first + most] if (entry := self._entry(key)) is not None]

    def __len__(self) -> int:
        return len(self._owners) + sum(key not in self._owners for key in self._static)

    @property
    def holders(self) -> int:
        """How many clients have names here or are linked."""
        return sum(map(len, self._clients.values()))

    # Time

    @property
    def settles_at(self) -> float | None:
        """When a name that nobody has is known not to be anybody's; None: it is by now."""
        return self._settles

    @property
    def deadline(self) -> float | None:
        """When `expire` has something to do, unless clients renew their leases before; None: never."""
        times = [holder.expires for holder in self._all() if holder.keys]
        if self._settles is not None:
            times.append(self._settles)
        return min(times, default=None)

    def expire(self, now: float) -> None:
        """Remove what is past its lease; what it left behind of one that is linked it will register again."""
        for holder in [each for each in self._all() if each.keys and now >= each.expires]:
            self._clear(holder)
        if self._settles is not None and now >= self._settles:
            self._settles = None
            self._given_up.clear()
            for key in self._watchers:
                if self._entry(key) is None:
                    self._changed(key)

    # Within

    def _all(self) -> Iterator[Holder]:
        for holders in self._clients.values():
            yield from holders

    def _entry(self, key: Key) -> Entry | None:
        holder = self._owners.get(key)
        return self._static.get(key) if holder is None else holder.keys[key]

    def _changed(self, key: Key) -> None:
        for holder in self._watchers.get(key, ()):
            # At the end: the order is that of the last change.
            holder.news.pop(key, None)
            holder.news[key] = None
            self.restless[holder] = None

    def _remove(self, holder: Holder, key: Key) -> None:
        del holder.keys[key]
        del self._owners[key]
        self._order = None
        if self._settles is not None and len(self._given_up) < self._bounds.all_entries:
            self._given_up.add(key)
        self._changed(key)

    def _clear(self, holder: Holder) -> None:
        """Take all names from a client."""
        for key in list(holder.keys):
            self._remove(holder, key)
        self._drop_if_empty(holder)

    def _drop(self, holder: Holder) -> None:
        """Forget a client with all it has."""
        for key in list(holder.keys):
            self._remove(holder, key)
        for key in list(holder.watches):
            self.unwatch(holder, key)
        self._hush(holder)
        holders = self._clients.get(holder.client, {})
        if holders.pop(holder, holder) is None and not holders:
            del self._clients[holder.client]

    def _drop_if_empty(self, holder: Holder) -> None:
        if not holder.linked and not holder.keys:
            self._drop(holder)

    def _hush(self, holder: Holder) -> None:
        holder.news.clear()
        self.restless.pop(holder, None)
