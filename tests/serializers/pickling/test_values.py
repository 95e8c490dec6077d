from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import DecodeError, EncodeError
from redpoll.serializers import PickleSerializer
from redpoll.serializers.pickling.values import BY_CLASS, BY_NAME, FACTORIES
from tests.serializers.pickling.streams import body, number, ours, some, text

PICKLE = PickleSerializer()

ZONED = datetime(2024, 10, 27, 2, 30, 5, 6, tzinfo=ZoneInfo("Europe/Zurich"), fold=1)

EXAMPLES: dict[type, list[Any]] = {
    complex: [1 + 2j, complex("inf"), -0j],
    date: [date(2024, 2, 29), date.min, date.max],
    datetime: [ZONED, datetime(1, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)],  # noqa: DTZ001
    time: [time(1, 2, 3, 4), time(1, tzinfo=timezone(timedelta(hours=-3)), fold=1)],
    timedelta: [timedelta.min, timedelta(1, 2, 3)],
    timezone: [UTC, timezone(timedelta(hours=2)), timezone(timedelta(minutes=-7), "Far")],
    ZoneInfo: [ZoneInfo("UTC"), ZoneInfo("America/Argentina/Buenos_Aires"), ZoneInfo("Etc/GMT+1")],
    Fraction: [Fraction(-1, 3), Fraction(2**200, 3)],
    UUID: [UUID(int=0), UUID(int=2**128 - 1)],
    array: [array("d", [1.5, -2]), array("q"), array("B", bytes(5000))],
    deque: [deque([1, [2]]), deque("abc", 2), deque(maxlen=0)],
    OrderedDict: [OrderedDict(b=1, a=2)],
    Counter: [Counter("abca")],
    defaultdict: [defaultdict(list, {1: [2]}), defaultdict(None), defaultdict(int)],
    Decimal: [Decimal("1.50"), Decimal("-Infinity"), Decimal("1e999999")],
    PurePosixPath: [PurePosixPath("/a/../b"), PurePosixPath()],
    PureWindowsPath: [PureWindowsPath("C:\\a")],
    **{
        type(each): [each]
        for make in (ip_address, ip_interface, ip_network)
        for each in (make("10.1.2.0"), make("fe80::"))
    },
}


def test_each_row_has_an_example() -> None:
    """The table and what follows are about the same classes."""
    assert EXAMPLES.keys() == BY_CLASS.keys()
    assert len(BY_NAME) == len(BY_CLASS)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_values_come_back(kind: type) -> None:
    """Each value survives a round trip with its exact class, and with state that equality ignores."""
    for value in EXAMPLES[kind]:
        found = PICKLE.decode(bytes(PICKLE.encode([value, value])))
        assert type(found[0]) is kind
        assert found[0] is found[1]
        assert found[0] == value
        assert repr(found[0]) == repr(value)


def test_a_value_that_is_no_number() -> None:
    """A signalling NaN, which equals nothing, survives too."""
    assert str(PICKLE.decode(bytes(PICKLE.encode(Decimal("sNaN12"))))) == "sNaN12"


@given(st.datetimes(timezones=st.timezones(), allow_imaginary=False) | st.datetimes())
def test_times(value: datetime) -> None:
    """Every time survives with its zone and its fold."""
    found = PICKLE.decode(bytes(PICKLE.encode(value)))
    assert (found.replace(tzinfo=None), found.tzinfo, found.fold) == (
        value.replace(tzinfo=None),
        value.tzinfo,
        value.fold,
    )


@pytest.mark.parametrize("factory", FACTORIES.values())
def test_defaults(factory: Any) -> None:
    """A defaultdict calls what it called."""
    assert PICKLE.decode(bytes(PICKLE.encode(defaultdict(factory)))).default_factory is factory


def test_other_defaults_have_to_be_let_in() -> None:
    """A defaultdict that calls something else is one of the classes that `allow` has to name."""
    sent = bytes(PICKLE.encode(defaultdict(Decimal, a=Decimal(1))))
    with pytest.raises(DecodeError, match="is not allowed"):
        PICKLE.decode(sent)
    assert PickleSerializer([defaultdict, Decimal]).decode(sent) == {"a": 1}


def test_subclasses_are_other_classes() -> None:
    """A value of a subclass is not encoded as one of its base."""
    with pytest.raises(EncodeError):
        PICKLE.encode(type("Mine", (Decimal,), {})("1"))
    with pytest.raises(DecodeError, match="is not allowed"):
        PICKLE.decode(bytes(PICKLE.encode(Path("a"))))


def test_fractions_are_bounded() -> None:
    """A fraction is reduced on arrival, so it may not have any number of digits."""
    large = Fraction(2**65_535 + 1, 2**65_535)
    assert PICKLE.decode(bytes(PICKLE.encode(large))) == large
    with pytest.raises(DecodeError, match="more than 65536 bits"):
        PICKLE.decode(bytes(PICKLE.encode(Fraction(2**65_536 + 1, 2**65_536))))


def test_containers_hold_themselves() -> None:
    """A container of the table may contain itself."""
    loop: deque[Any] = deque()
    loop.append(loop)
    found = PICKLE.decode(bytes(PICKLE.encode(loop)))
    assert found[0] is found


def test_arguments_are_checked_by_exact_type() -> None:
    """A bool is not a number here, and nothing is called with more or fewer values than the table allows."""
    for wrong in (
        ours("date", b"\x88", number(1), number(1)),
        ours("date", number(1), number(1), number(1), number(1)),
        ours("Decimal", some(number(0), some(number(1)), number(0))),
        ours("timezone", number(1)),
        ours("UUID", text("00000000-0000-0000-0000-000000000000")),
        ours("time", *[number(0)] * 4, text("UTC"), number(0)),
    ):
        with pytest.raises(DecodeError):
            PICKLE.decode(body(wrong))


def test_the_other_byte_order() -> None:
    """An array of a machine with the other byte order has the same numbers here."""
    import sys

    other = b"\x89" if sys.byteorder == "little" else b"\x88"
    sent = b"\x96" + (4).to_bytes(8, "little") + (258).to_bytes(4, "big" if sys.byteorder == "little" else "little")
    assert PICKLE.decode(body(ours("array", text("i"), number(4), other, sent))).tolist() == [258]


def test_the_rows_are_not_classes() -> None:
    """A class as data is not among the values."""
    with pytest.raises(DecodeError, match="allow="):
        PICKLE.decode(bytes(PICKLE.encode(date)))
