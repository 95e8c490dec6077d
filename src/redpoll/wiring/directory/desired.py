"""The desired state of a client of the directory, without I/O: registrations and watches.

It outlives every link, and every run of the directory: after each hello all of it is requested again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from redpoll.errors import WiringError
from redpoll.wiring.directory.entries import Entry, Key
from redpoll.wiring.directory.table import LookupResult, Outcome, RegistrationResult

__all__ = ["MAX_NAMES", "DesiredState", "Registration", "Standing", "Watch"]

#: Maximum registrations, and watches, of one client; as many as a directory accepts.
MAX_NAMES = 10_000

_logger = logging.getLogger("redpoll.wiring")


class Standing(Enum):
    """State of a registration."""

    ASKED = "asked"
    """Not answered yet, since it was requested or since the directory was restarted."""
    HELD = "held"
    """The name is registered."""
    LOST = "lost"
    """The name is not registered; most likely another owner has it."""


class Registration:
    """A requested name.

    Attributes:
        entry: The name with its data.
        standing: Its state.
        confirmed: True if it was ever registered.
    """

    __slots__ = ("confirmed", "entry", "standing")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.standing = Standing.ASKED
        self.confirmed = False


class Watch:
    """A watched name, until `cancel`.

    Attributes:
        key: Kind and name.
        entry: The entry reported last; None if the name has no owner, as far as known.
        known: True if anything was reported.
    """

    __slots__ = ("_callback", "_desired", "entry", "key", "known")

    def __init__(self, desired: DesiredState, key: Key, callback: Callable[[Entry | None], object]) -> None:
        self._desired = desired
        self._callback = callback
        self.key = key
        self.entry: Entry | None = None
        self.known = False

    def cancel(self) -> None:
        """End the watch. A second call does nothing."""
        self._desired.unwatch(self)

    def _tell(self, entry: Entry | None) -> None:
        if self.known and entry == self.entry:
            return
        self.entry = entry
        self.known = True
        try:
            self._callback(entry)
        except (Exception, asyncio.CancelledError):
            _logger.exception("what watches the %s %r raised", *self.key)


class DesiredState:
    """All registrations and watches of one client.

    Args:
        unwatched: Called with a name whose last watch has ended.
    """

    def __init__(self, unwatched: Callable[[Key], object]) -> None:
        self._unwatched = unwatched
        self.registrations: dict[Key, Registration] = {}
        #: The watches of each name, and its last result over this link.
        self._watches: dict[Key, dict[Watch, None]] = {}
        self._seen: dict[Key, LookupResult] = {}

    def begin(self) -> None:
        """Begin with a new link: results over the former one no longer count."""
        for registration in self.registrations.values():
            if registration.standing is Standing.HELD:
                registration.standing = Standing.ASKED
        self._seen.clear()

    # Registrations

    def register(self, entry: Entry) -> Registration:
        """Add a registration.

        Raises:
            WiringError: There are too many registrations.
        """
        if entry.key not in self.registrations and len(self.registrations) >= MAX_NAMES:
            raise WiringError(f"one client registers at most {MAX_NAMES:,} names")
        registration = self.registrations[entry.key] = Registration(entry)
        return registration

    def drop(self, registration: Registration) -> bool:
        """Remove a registration; return False if a later one of the same name has replaced it."""
        if self.registrations.get(registration.entry.key) is not registration:
            return False
        del self.registrations[registration.entry.key]
        return True

    def answered(self, registration: Registration, result: RegistrationResult) -> bool:
        """Note the directory's answer; return True if it is the first to report the loss of a name."""
        if result.outcome is Outcome.REGISTERED:
            registration.standing = Standing.HELD
            registration.confirmed = True
            return False
        lost = registration.confirmed and registration.standing is not Standing.LOST
        registration.standing = Standing.LOST
        return lost

    @property
    def count(self) -> int | None:
        """Number of registered names; None while that of one is unknown."""
        standings = [each.standing for each in self.registrations.values()]
        return None if Standing.ASKED in standings else standings.count(Standing.HELD)

    @property
    def lost(self) -> list[Registration]:
        """Registrations that were confirmed, and whose names now have other owners."""
        return [each for each in self.registrations.values() if each.standing is Standing.LOST and each.confirmed]

    # Watches

    @property
    def watched(self) -> list[Key]:
        """The watched names."""
        return list(self._watches)

    @property
    def unseen(self) -> list[Key]:
        """Watched names without a result over this link."""
        return [key for key in self._watches if key not in self._seen]

    def watch(self, key: Key, callback: Callable[[Entry | None], object]) -> tuple[Watch, bool]:
        """Watch a name.

        Returns:
            The watch, and True if it is the first one of the name.

        Raises:
            WiringError: There are too many watches.
        """
        if key not in self._watches and len(self._watches) >= MAX_NAMES:
            raise WiringError(f"one client watches at most {MAX_NAMES:,} names")
        watches = self._watches.setdefault(key, {})
        watch = Watch(self, key, callback)
        watches[watch] = None
        return watch, len(watches) == 1

    def remind(self, watch: Watch) -> None:
        """Report the known state of a name to a new watch."""
        seen = self._seen.get(watch.key)
        if seen is not None and seen.tells and watch in self._watches.get(watch.key, ()):
            watch._tell(seen.entry)

    def unwatch(self, watch: Watch) -> None:
        """Remove a watch."""
        watches = self._watches.get(watch.key, {})
        if watch in watches:
            del watches[watch]
            if not watches:
                del self._watches[watch.key]
                self._seen.pop(watch.key, None)
                self._unwatched(watch.key)

    def saw(self, key: Key, seen: LookupResult) -> None:
        """Report a new state of a name to its watches, unless a later one is known."""
        watches = self._watches.get(key)
        known = self._seen.get(key)
        if watches is None or (known is not None and known.revision >= seen.revision):
            return
        self._seen[key] = seen
        if seen.tells:
            for watch in list(watches):
                if watch in watches:
                    watch._tell(seen.entry)
