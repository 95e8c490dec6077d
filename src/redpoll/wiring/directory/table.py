"""The table of a directory: the owner of each name, its lease, and the clients that watch it.

Sans-IO: time comes in as an argument, one next deadline goes out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from redpoll.wiring.directory.entries import Entry, Key

__all__ = ["Bounds", "Holder", "LookupResult", "Outcome", "RegistrationResult", "Table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a table.

    Attributes:
        entries: Maximum names of one client.
        watches: Maximum names that one client watches.
        all_entries: Maximum names of all clients.
        all_watches: Maximum watches of all clients.
    """

    entries: int = 10_000
    watches: int = 10_000
    all_entries: int = 200_000
    all_watches: int = 200_000


class Outcome(Enum):
    """Result of a registration."""

    REGISTERED = 0
    TAKEN = 1
    """Another owner has the name."""
    FULL = 2
    """A limit was reached."""
    LOOPBACK = 3
    """Only its own machine can reach the address, and the directory is on another one."""
    NOWHERE = 4
    """The address cannot be dialled."""


class RegistrationResult(NamedTuple):
    """Result of a registration, with details of a failure.

    Attributes:
        outcome: The outcome.
        free_in: Seconds until the lease of an owner that is gone expires; None if the owner is there.
        limit: The limit that was reached.
    """

    outcome: Outcome
    free_in: float | None = None
    limit: int = 0


class LookupResult(NamedTuple):
    """State of a name at a moment.

    Attributes:
        revision: A number that grows with each lookup, so that the later of two can be told.
        entry: The entry; None if it is not registered.
        known: True if the owner is known: an unregistered name may have one in the first lease of a table, while owners
            return, unless an owner gave it up.
    """

    revision: int
    entry: Entry | None
    known: bool

    @property
    def tells(self) -> bool:
        """True if it tells anything: who the owner is, or that there is none."""
        return self.known or self.entry is not None


class Holder:
    """A client of the directory, from its hello until its lease expires.

    Attributes:
        client: Random id of the client, the same over all its links.
        run: Number of its run, which grows from run to run of its owner.
        linked: True while its link is up.
        expires: Time when its lease expires, unless it renews it.
        keys: Its entries, by name.
        watches: The names that it watches.
        news: Names with changes that it was not told yet.
        again: True if another client took a name over, so that it must register all its names again.
    """

    __slots__ = ("again", "client", "expires", "keys", "linked", "news", "run", "watches")

    def __init__(self, client: bytes, run: int) -> None:
        self.client = client
        self.run = run
        self.linked = True
        self.expires = 0.0
        self.keys: dict[Key, Entry] = {}
        self.watches: set[Key] = set()
        self.news: dict[Key, None] = {}
        self.again = False


_REGISTERED = RegistrationResult(Outcome.REGISTERED)


class Table:
    """Names, their owners, and the clients that watch them.

    Args:
        now: The time, in seconds of any monotonic clock.
        lease: Seconds for which a silent owner keeps its names.
        grace: Seconds from now in which an unregistered name may have an owner that is about to return.
        static: Static entries, which never expire; a registration takes precedence.
        bounds: Its limits.

    Attributes:
        restless: Holders with news; the owner of the table empties it.
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
        #: Holders that have names or are linked, by client, which may be linked more than once.
        self._clients: dict[bytes, dict[Holder, None]] = {}
        self._settles: float | None = now + grace
        #: Names that their owners gave up before that.
        self._given_up: set[Key] = set()
        self._revision = 0
        #: All names in order; None if they must be sorted again.
        self._order: list[Key] | None = None
        self.expire(now)

    # Clients

    def join(self, now: float, holder: Holder) -> None:
        """Add a client with a new link; it has no names yet."""
        holder.expires = now + self.lease
        self._clients.setdefault(holder.client, {})[holder] = None

    def renew(self, now: float, holder: Holder, count: int | None) -> bool:
        """Renew the lease of a client.

        Args:
            now: The time.
            holder: The client.
            count: The number of its names; None if it does not know.

        Returns:
            True if the table has as many; if not, it must join again and register all its names.
        """
        holder.expires = now + self.lease
        return count is None or count == len(holder.keys)

    def settle(self, holder: Holder) -> None:
        """Remove the names that a client's former links left, as it has registered all its names."""
        for other in [each for each in self._clients.get(holder.client, ()) if each is not holder]:
            self._clear(other)

    def lose(self, now: float, holder: Holder, *, back: bool = False) -> None:
        """Note the loss of a client's link: its names are suspect, and its lease runs.

        Args:
            now: The time.
            holder: The client.
            back: True if it has returned over another link, so that its names are not suspect.
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
        """Remove a client that closed, with all its names."""
        holder.linked = False
        self._clear(holder)

    # Names

    def register(self, now: float, holder: Holder, entry: Entry) -> RegistrationResult:
        """Register a name for a client, or change its entry.

        The owner yields the name to the same client over a new link, and to a later run of the same owner; and, once its link
        is lost, to any run of that owner, and to a client at the same address.
        """
        key = entry.key
        former = self._owners.get(key)
        bounds = self._bounds
        holder.expires = now + self.lease
        if former is not None and former is not holder and not self._yields(former, holder, entry):
            return RegistrationResult(Outcome.TAKEN, None if former.linked else max(former.expires - now, 0.0))
        if former is not holder and len(holder.keys) >= bounds.entries:
            return RegistrationResult(Outcome.FULL, limit=bounds.entries)
        if former is None and len(self._owners) >= bounds.all_entries:
            return RegistrationResult(Outcome.FULL, limit=bounds.all_entries)
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
        """Return True if the owner of a name yields it to another client."""
        if former.client == holder.client:
            return True
        held = former.keys[entry.key]
        if held.identity is not None and held.identity == entry.identity:
            return holder.run > former.run or not former.linked
        # The former owner cannot listen at an address at which the new one does.
        return held.address == entry.address and not former.linked

    def unregister(self, holder: Holder, key: Key) -> bool:
        """Remove a name of a client; return False if the client does not have it."""
        if key not in holder.keys:
            return False
        self._remove(holder, key)
        self._drop_if_empty(holder)
        return True

    # Lookups and watches

    def look(self, now: float, key: Key) -> LookupResult:
        """Return the state of a name."""
        self._revision += 1
        entry = self._entry(key)
        settled = self._settles is None or now >= self._settles or key in self._given_up
        return LookupResult(self._revision, entry, entry is not None or settled)

    def watch(self, holder: Holder, key: Key) -> bool:
        """Watch a name for a client; return False if a limit was reached."""
        if key in holder.watches:
            return True
        if len(holder.watches) >= self._bounds.watches or self._watch_count >= self._bounds.all_watches:
            return False
        holder.watches.add(key)
        self._watchers.setdefault(key, {})[holder] = None
        self._watch_count += 1
        return True

    def unwatch(self, holder: Holder, key: Key) -> None:
        """End a client's watch of a name."""
        if key not in holder.watches:
            return
        holder.watches.discard(key)
        holder.news.pop(key, None)
        self._watch_count -= 1
        watchers = self._watchers[key]
        del watchers[holder]
        if not watchers:
            del self._watchers[key]

    def take_news(self, now: float, holder: Holder, most: int) -> list[tuple[Key, LookupResult]]:
        """Take at most `most` of a client's pending news, in the order of their changes; of each name the latest state."""
        keys = [key for key, _ in zip(holder.news, range(most), strict=False)]
        for key in keys:
            del holder.news[key]
        return [(key, self.look(now, key)) for key in keys]

    def give_back(self, holder: Holder, keys: Iterable[Key]) -> None:
        """Return news that could not be sent: they are sent with the next ones."""
        holder.news.update(dict.fromkeys(key for key in keys if key in holder.watches))

    def page(self, after: Key | None, most: int) -> list[Entry]:
        """Return at most `most` entries behind a name, in order; with None from the beginning."""
        if self._order is None:
            self._order = sorted({*self._owners, *self._static})
        first = 0 if after is None else bisect_right(self._order, after)
        return [entry for key in self._order[first : first + most] if (entry := self._entry(key)) is not None]

    def __len__(self) -> int:
        return len(self._owners) + sum(key not in self._owners for key in self._static)

    @property
    def holders(self) -> int:
        """Number of clients with names or a link."""
        return sum(map(len, self._clients.values()))

    # Time

    @property
    def settles_at(self) -> float | None:
        """Time from which the table knows that an unregistered name has no owner; None if it has passed."""
        return self._settles

    @property
    def deadline(self) -> float | None:
        """Time of the next expiry, unless clients renew their leases; None if there is none."""
        times = [holder.expires for holder in self._all() if holder.keys]
        if self._settles is not None:
            times.append(self._settles)
        return min(times, default=None)

    def expire(self, now: float) -> None:
        """Remove names with expired leases; a linked client registers its names again."""
        for holder in [each for each in self._all() if each.keys and now >= each.expires]:
            self._clear(holder)
        if self._settles is not None and now >= self._settles:
            self._settles = None
            self._given_up.clear()
            for key in self._watchers:
                if self._entry(key) is None:
                    self._changed(key)

    # Helpers

    def _all(self) -> Iterator[Holder]:
        for holders in self._clients.values():
            yield from holders

    def _entry(self, key: Key) -> Entry | None:
        holder = self._owners.get(key)
        return self._static.get(key) if holder is None else holder.keys[key]

    def _changed(self, key: Key) -> None:
        for holder in self._watchers.get(key, ()):
            # Moved to the end: the order is that of the last change.
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
        """Remove all names of a client."""
        for key in list(holder.keys):
            self._remove(holder, key)
        self._drop_if_empty(holder)

    def _drop(self, holder: Holder) -> None:
        """Forget a client without names, with all its watches."""
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
