"""Values of the standard library, as a table: how each is reduced, and which arguments it is created from.

A pickle names a row of this table, not a class, and the types of the arguments are checked before anything is called.
So no class gets an argument that it would interpret in another way: the packed form of a datetime, a list to copy, an
object that computes its own text.

Not here: slices, since as the key of a list one lets a few bytes double it again and again, and ranges, which assigned
there fill all memory; members of enums, named tuples and data classes, since they are of the program's own classes;
concrete paths, which act on files; functions and classes, which act.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PurePosixPath, PureWindowsPath
from pickle import PickleBuffer
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

__all__ = ["BY_CLASS", "BY_NAME", "FACTORIES", "Taken", "Value"]

#: A reduced value: the arguments to create it from, then its list items and its dict items.
Taken = tuple[tuple[Any, ...]] | tuple[tuple[Any, ...], Iterator[Any] | None, Iterator[Any] | None]

#: Factories that a defaultdict may call for a missing key, by name: they create an empty value, whatever happens.
FACTORIES: Mapping[str, Callable[[], Any]] = {each.__name__: each for each in (list, dict, set, int, float, str, bytes)}

#: Maximum size of the numbers in a Fraction, in bits: reducing it takes quadratic time.
_FRACTION_BITS = 64 * 1024

_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}")

_INT = frozenset((int,))
_STR = frozenset((str,))
_FLOAT = frozenset((float,))
_BYTES = frozenset((bytes, bytearray, memoryview))
_BOOL = frozenset((bool,))
_NAME: frozenset[type] = frozenset((str, type(None)))
_COUNT: frozenset[type] = frozenset((int, type(None)))
# The constructor checks the argument itself.
_ANY: frozenset[type] = frozenset()


class Value(NamedTuple):
    """A row: how a value is reduced and created.

    Attributes:
        name: Name in the pickle.
        take: Reduces it; None if it cannot.
        make: Creates it.
        kinds: Exact types of its arguments; an empty set leaves the check to `make`.
        missing: Number of trailing arguments that may be omitted.
        held: Whether `nesting` checks it.
    """

    name: str
    take: Callable[[Any], Taken | None]
    make: Callable[..., Any]
    kinds: tuple[frozenset[type], ...] = ()
    missing: int = 0
    held: bool = False


def _datetime(*parts: Any) -> datetime:
    return datetime(*parts[:8], fold=parts[8])  # noqa: DTZ001 - a zone is among the parts, if it had one


def _time(*parts: Any) -> time:
    return time(*parts[:5], fold=parts[5])


def _array(kind: str, size: int, little: bool, data: bytes | bytearray | memoryview) -> array[Any]:
    made = array(kind)
    if made.itemsize != size:
        raise ValueError(f"items of array {kind!r} have {size} bytes there and {made.itemsize} here")
    made.frombytes(data)
    if little is not (sys.byteorder == "little"):
        made.byteswap()
    return made


def _fraction(numerator: int, denominator: int) -> Fraction:
    if max(numerator.bit_length(), denominator.bit_length()) > _FRACTION_BITS:
        raise ValueError(f"a Fraction has numbers of more than {_FRACTION_BITS} bits")
    return Fraction(numerator, denominator)


def _zone(key: str) -> ZoneInfo:
    if not _ZONE.fullmatch(key):
        raise ValueError(f"{key!r} is not a time zone")
    return ZoneInfo(key)


def _defaultdict(factory: str | None) -> defaultdict[Any, Any]:
    if factory is None:
        return defaultdict(None)
    if factory not in FACTORIES:
        raise ValueError(f"a defaultdict may not call {factory!r} here")
    return defaultdict(FACTORIES[factory])


def _deque(maxlen: int | None) -> deque[Any]:
    return deque(maxlen=maxlen)


def _uuid(number: int) -> UUID:
    return UUID(int=number)


def _take_datetime(value: datetime) -> Taken:
    parts = value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond
    return ((*parts, value.tzinfo, value.fold),)


def _take_time(value: time) -> Taken:
    return ((value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold),)


def _take_defaultdict(value: defaultdict[Any, Any]) -> Taken | None:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and FACTORIES.get(name) is not factory:
        return None
    return (name,), None, iter(value.items())


def _take_array(value: array[Any]) -> Taken:
    return ((value.typecode, value.itemsize, sys.byteorder == "little", PickleBuffer(value)),)


def _take_zone(value: ZoneInfo) -> Taken | None:
    return None if not value.key else ((value.key,),)


_TEXTS = (
    Decimal,
    PurePosixPath,
    PureWindowsPath,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)

_ITEMS_ALONE: tuple[Any, ...] = ()

#: Class to its row. A subclass is another class, which has to be in `allow`. The items of containers arrive one by one,
#: so that no list can be copied into them again and again.
BY_CLASS: Mapping[type, Value] = {
    complex: Value("complex", lambda value: ((value.real, value.imag),), complex, (_FLOAT,) * 2),
    date: Value("date", lambda value: ((value.year, value.month, value.day),), date, (_INT,) * 3),
    datetime: Value("datetime", _take_datetime, _datetime, (*(_INT,) * 7, _ANY, _INT)),
    time: Value("time", _take_time, _time, (*(_INT,) * 4, _ANY, _INT)),
    timedelta: Value(
        "timedelta", lambda value: ((value.days, value.seconds, value.microseconds),), timedelta, (_INT,) * 3
    ),
    timezone: Value(
        "timezone", lambda value: (value.__getinitargs__(),), timezone, (frozenset((timedelta,)), _STR), missing=1
    ),
    ZoneInfo: Value("ZoneInfo", _take_zone, _zone, (_STR,)),
    Fraction: Value("Fraction", lambda value: ((value.numerator, value.denominator),), _fraction, (_INT,) * 2),
    UUID: Value("UUID", lambda value: ((value.int,),), _uuid, (_INT,)),
    array: Value("array", _take_array, _array, (_STR, _INT, _BOOL, _BYTES)),
    deque: Value("deque", lambda value: ((value.maxlen,), iter(value), None), _deque, (_COUNT,), held=True),
    OrderedDict: Value("OrderedDict", lambda value: (_ITEMS_ALONE, None, iter(value.items())), OrderedDict),
    Counter: Value("Counter", lambda value: (_ITEMS_ALONE, None, iter(value.items())), Counter),
    defaultdict: Value("defaultdict", _take_defaultdict, _defaultdict, (_NAME,), held=True),
    **{kind: Value(kind.__name__, lambda value: ((str(value),),), kind, (_STR,)) for kind in _TEXTS},
}

#: Name in the pickle to its row.
BY_NAME: Mapping[str, Value] = {each.name: each for each in BY_CLASS.values()}
