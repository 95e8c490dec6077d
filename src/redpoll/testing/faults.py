"""Faults of a connection, as values: lasting conditions, single events, and the probabilities of both."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from redpoll.errors import ConfigError

__all__ = ["CUTS", "DIRECTIONS", "Chaos", "Cut", "Direction", "Event", "Faults", "ProxyStats", "Step", "check_word"]

Direction = Literal["forward", "back", "both"]
"""Direction of bytes: "forward" from the end that dialled to the target, "back" the other way, or "both"."""

Cut = Literal["fin", "rst", "silence"]
"""End of a connection: "fin" closes it, "rst" resets it, "silence" passes nothing without telling either end."""

Event = Literal["fin", "rst", "silence", "freeze", "thaw", "hold", "set"]

DIRECTIONS: frozenset[str] = frozenset(get_args(Direction))
CUTS: frozenset[str] = frozenset(get_args(Cut))
_EVENTS: frozenset[str] = frozenset(get_args(Event))
_LASTING: frozenset[str] = frozenset(("freeze", "hold", "set"))

_MAX_BYTES = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The lasting conditions of one direction of a connection; the default is a network that is only passed through.

    Attributes:
        delay: Seconds between reading bytes and passing them on, 0 or more. Order is kept. No more than the proxy's
            `buffer` is under way, so a delay also bounds the rate, as it does where a TCP window is small.
        jitter: Up to so many seconds are added to `delay`, drawn anew for all that is read at a time.
        rate: Bytes a second that pass, above 0; None is no limit.
        pieces: How many bytes are written at a time: one size for all, sizes used in turn (a tuple), or a range to draw
            from. The reader gets a chance to read between two of them. None: as they come.
        pause: Seconds between two pieces, 0 or more.
        cut_after: The connection is cut when so many bytes of this direction have passed; None is never.
        cut: How it is cut then; "silence" silences this direction alone.

    Raises:
        ConfigError: A value that it cannot have; the error names it.
    """

    delay: float = 0.0
    jitter: float = 0.0
    rate: float | None = None
    pieces: int | tuple[int, ...] | range | None = None
    pause: float = 0.0
    cut_after: int | None = None
    cut: Cut = "rst"

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("delay", "jitter", "pause"):
            _check_seconds(name, getattr(self, name))
        if self.rate is not None and not (_is_number(self.rate) and self.rate > 0):
            raise ConfigError("rate", self.rate, "is no number of bytes a second above 0")
        if self.pieces is not None and not _are_pieces(self.pieces):
            raise ConfigError("pieces", self.pieces, "is no size above 0, tuple of sizes, or range of sizes")
        if self.cut_after is not None and not (type(self.cut_after) is int and 0 <= self.cut_after < _MAX_BYTES):
            raise ConfigError("cut_after", self.cut_after, "is no number of bytes")
        check_word("cut", self.cut, CUTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An event in the life of a connection.

    Attributes:
        do: "fin", "rst" and "silence" cut; "freeze" stops reading and passing on, "thaw" continues with both; "hold" keeps
            bytes back until a newer connection has passed some, which reorders the two; "set" changes the conditions.
        after: Seconds since the step before, or since the connection was made.
        direction: Which way. A reset takes both.
        seconds: How long "freeze", "hold" and "set" last; None is until something else ends it.
        faults: The conditions that "set" sets.

    Raises:
        ConfigError: A value that it cannot have; the error names it.
    """

    do: Event
    after: float = 0.0
    direction: Direction = "both"
    seconds: float | None = None
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        """Check the values."""
        check_word("do", self.do, _EVENTS)
        check_word("direction", self.direction, DIRECTIONS)
        _check_seconds("after", self.after)
        if self.seconds is not None:
            _check_seconds("seconds", self.seconds)
            if self.do not in _LASTING:
                raise ConfigError("seconds", self.seconds, f"means nothing for {self.do!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """Probabilities and ranges of random faults. The seed alone determines their effect on each connection.

    Every so often something happens to a connection, or nothing: the chances of the events add up to 1 at most. A range
    is a pair, of the least and the most.

    Attributes:
        interval: Seconds between two draws on one connection.
        fin: Chance that a draw closes the connection.
        rst: Chance that it resets it.
        silence: Chance that it silences one direction or both for good. What finds that out is a node's keepalive, which
            takes 15 seconds unless its Config says otherwise, so the default is none.
        freeze: Chance that it freezes one direction or both for a while.
        hold: Chance that it holds one direction back until a newer connection has passed something, or for a while.
        change: Chance that it changes the conditions of one direction or of both, drawn from the ranges below.
        refuse: Chance that a new connection is reset at once, rather than one of those above.
        pause_seconds: Seconds of a freeze, and the most that a hold takes.
        delay: Seconds of `Faults.delay`; `jitter` is drawn from the same range.
        rate: Bytes a second of `Faults.rate`.
        pieces: Bytes of `Faults.pieces`: each write arrives in pieces of random sizes of this range.

    Raises:
        ConfigError: A value that it cannot have; the error names it.
    """

    interval: tuple[float, float] = (0.02, 0.5)
    fin: float = 0.05
    rst: float = 0.1
    silence: float = 0.0
    freeze: float = 0.15
    hold: float = 0.05
    change: float = 0.5
    refuse: float = 0.05
    pause_seconds: tuple[float, float] = (0.01, 0.3)
    delay: tuple[float, float] = (0.0, 0.02)
    rate: tuple[float, float] = (100_000.0, 10_000_000.0)
    pieces: tuple[int, int] = (1, 4096)

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("fin", "rst", "silence", "freeze", "hold", "change", "refuse"):
            chance = getattr(self, name)
            if not (_is_number(chance) and 0 <= chance <= 1):
                raise ConfigError(name, chance, "is no chance from 0 to 1")
        if sum(self._chances().values()) > 1 + 1e-9:
            raise ConfigError("change", self.change, "the chances of a draw add up to more than 1")
        for name, least in (("interval", 0.001), ("pause_seconds", 0), ("delay", 0), ("rate", 1), ("pieces", 1)):
            pair = getattr(self, name)
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_number, pair))):
                raise ConfigError(name, pair, "is no pair of numbers")
            if not least <= pair[0] <= pair[1]:
                raise ConfigError(name, pair, f"is no range from {least} up")

    def refuses(self, draw: random.Random) -> bool:
        """Return True if a new connection is refused.

        Args:
            draw: Where chance comes from.
        """
        return draw.random() < self.refuse

    def steps(self, draw: random.Random) -> Iterator[Step]:
        """Yield the events of one connection, without end; the same for the same random numbers.

        Args:
            draw: Where chance comes from.
        """
        ways: tuple[Direction, ...] = ("forward", "back", "both")
        while True:
            after = draw.uniform(*self.interval)
            event = self._event(draw.random())
            direction = draw.choice(ways)
            seconds = draw.uniform(*self.pause_seconds)
            faults = self._conditions(draw)
            if event is None:
                # An event that changes nothing, so that time continues.
                yield Step(do="thaw", after=after, direction=direction)
            elif event in {"freeze", "hold"}:
                yield Step(do=event, after=after, direction=direction, seconds=seconds)
            elif event == "set":
                yield Step(do=event, after=after, direction=direction, faults=faults)
            else:
                yield Step(do=event, after=after, direction=direction if event == "silence" else "both")

    def _chances(self) -> dict[Event, float]:
        return {
            "fin": self.fin,
            "rst": self.rst,
            "silence": self.silence,
            "freeze": self.freeze,
            "hold": self.hold,
            "set": self.change,
        }

    def _event(self, drawn: float) -> Event | None:
        for event, chance in self._chances().items():
            if drawn < chance:
                return event
            drawn -= chance
        return None

    def _conditions(self, draw: random.Random) -> Faults:
        least, most = self.pieces
        kinds = draw.random(), draw.random(), draw.random()
        delay, jitter, rate = draw.uniform(*self.delay), draw.uniform(*self.delay), draw.uniform(*self.rate)
        return Faults(
            delay=delay if kinds[0] < 0.5 else 0.0,
            jitter=jitter if kinds[0] < 0.5 else 0.0,
            rate=rate if kinds[1] < 0.3 else None,
            pieces=range(least, most + 1) if kinds[2] < 0.5 else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyStats:
    """Counters of a proxy.

    Attributes:
        connections: Connections that it took, those open included.
        open: Connections open now.
        refused: Connections that it reset at once, by chance or because it was told to. What finds nobody listening is
            not counted.
        unreachable: Connections that it could not hand to the target.
        fin: Connections that it closed.
        rst: Connections that it reset.
        silence: Directions that it silenced.
        freezes: Directions that it froze.
        holds: Directions that it held back.
        pieces: Writes, in both directions.
        forward: Bytes passed to the target.
        back: Bytes passed from it.
        dropped: Bytes that it had read and did not pass on.
    """

    connections: int = 0
    open: int = 0
    refused: int = 0
    unreachable: int = 0
    fin: int = 0
    rst: int = 0
    silence: int = 0
    freezes: int = 0
    holds: int = 0
    pieces: int = 0
    forward: int = 0
    back: int = 0
    dropped: int = 0

    def __str__(self) -> str:
        """The counters that are not 0."""
        counted = [f"{each.name} {getattr(self, each.name)}" for each in fields(self) if getattr(self, each.name)]
        return ", ".join(counted) or "nothing yet"


def check_word(name: str, value: object, words: frozenset[str]) -> None:
    """Check that a value is one of a few words.

    Raises:
        ConfigError: It is not.
    """
    if not (isinstance(value, str) and value in words):
        raise ConfigError(name, value, f"is none of {', '.join(sorted(words))}")


def _is_number(value: Any) -> bool:
    # Neither NaN nor infinity is below anything.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_BYTES


def _check_seconds(name: str, value: Any) -> None:
    if not (_is_number(value) and value >= 0):
        raise ConfigError(name, value, "is no number of seconds")


def _are_pieces(value: Any) -> bool:
    if isinstance(value, tuple | range):
        return len(value) > 0 and all(
            type(each) is int and each > 0 for each in (value if type(value) is tuple else (min(value), max(value)))
        )
    return type(value) is int and value > 0
