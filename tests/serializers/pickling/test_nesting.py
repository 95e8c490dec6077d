from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections import defaultdict, deque
from typing import Any

import numpy as np
import pytest

from redpoll.errors import DecodeError
from redpoll.serializers import PickleSerializer
from redpoll.serializers.pickling.names import MODULE
from redpoll.serializers.pickling.nesting import ARRAYS_DEEP, DEEP, NestingError, check, empty
from tests.cli.support import environment
from tests.serializers.pickling.streams import body, named, ours, some
from tests.source_tree import ROOT

PICKLE = PickleSerializer()

#: Name, its arguments, what stands before an item and behind it.
KINDS = {
    "deque": (b"N\x85", b"", b"a"),
    "defaultdict": (b"N\x85", b"K\x00", b"s"),
}


def chain(kind: str, levels: int, between: tuple[bytes, bytes] = (b"", b"")) -> bytes:
    """Opcodes of containers in one another, something between every two of them."""
    arguments, before, behind = KINDS[kind]
    start = named(MODULE, kind) + b"\x940" + arguments + b"\x940"
    return start + (between[0] + b"h\x00h\x01R" + before) * levels + b"N" + (behind + between[1]) * levels


def arrays(levels: int) -> bytes:
    """Opcodes of arrays of objects in one another."""
    start = named(MODULE, "numpy_objects") + b"\x940" + b"K\x01\x85\x940"
    return start + b"h\x00h\x01]" * levels + b"N" + b"a\x86R" * levels


def depth(value: Any) -> int:
    """Count the levels."""
    levels = 0
    while value is not None:
        levels += 1
        value = value[0]
    return levels


@pytest.mark.parametrize("kind", KINDS)
def test_the_deepest(kind: str) -> None:
    """Deques and defaultdicts are read to a depth, and refused beyond it."""
    assert depth(PICKLE.decode(body(chain(kind, DEEP)))) == DEEP
    with pytest.raises(DecodeError, match="nested more than 2,000 deep"):
        PICKLE.decode(body(chain(kind, DEEP + 1)))


def test_the_deepest_array() -> None:
    """So are arrays of objects, to a lesser one."""
    assert depth(PICKLE.decode(body(arrays(ARRAYS_DEEP)))) == ARRAYS_DEEP
    with pytest.raises(DecodeError, match="arrays of objects more than 100"):
        PICKLE.decode(body(arrays(ARRAYS_DEEP + 1)))


@pytest.mark.parametrize(
    "between",
    [(b"]", b"a"), (b"}K\x01", b"s"), (b"", b"\x85"), (b"]", b"a\x85")],
    ids=["list", "dict", "tuple", "both"],
)
def test_what_is_between_does_not_matter(between: tuple[bytes, bytes]) -> None:
    """The levels of a chain count through other containers: CPython 3.13 ends recursion by its depth alone."""
    with pytest.raises(DecodeError, match="nested more than"):
        PICKLE.decode(body(chain("deque", DEEP + 1, between)))


def test_links_that_are_made_afterwards_count() -> None:
    """A chain is refused too if each was made empty, and the next one put into it from the memo."""
    count = DEEP + 1
    start = named(MODULE, "deque") + b"\x940" + b"N\x85\x940" + b"h\x00h\x01R\x940" * count
    index = [b"j" + (2 + each).to_bytes(4, "little") for each in range(count)]
    links = b"".join(index[each] + index[each + 1] + b"a0" for each in range(count - 1))
    with pytest.raises(DecodeError, match="nested more than"):
        PICKLE.decode(body(start, links, index[0]))


def test_circles_are_kept() -> None:
    """A deque in itself, and a small ring of them through lists, arrive as they were."""
    one: deque[Any] = deque()
    one.append(one)
    got = PICKLE.decode(bytes(PICKLE.encode(one)))
    assert got[0] is got
    assert len(PICKLE.decode(body(_ring(DEEP)))) == 1
    with pytest.raises(DecodeError, match="nested more than"):
        PICKLE.decode(body(_ring(DEEP + 1)))


def _ring(count: int) -> bytes:
    index = [b"j" + (2 + each).to_bytes(4, "little") for each in range(count)]
    start = named(MODULE, "deque") + b"\x940" + b"N\x85\x940" + b"h\x00h\x01R\x940" * count
    return start + b"".join(index[each - 1] + b"]" + index[each] + b"aa0" for each in range(count)) + index[0]


def test_many_beside_one_another_are_read() -> None:
    """Their number is not their depth: thousands of defaultdicts with deques in them arrive."""
    sent: list[Any] = [defaultdict(int, {index: deque([index])}) for index in range(DEEP + 1)]
    assert PICKLE.decode(bytes(PICKLE.encode(sent))) == sent


def test_many_in_arrays_are_read() -> None:
    """Arrays of objects beside one another, with containers and arrays in them, arrive."""
    sent = np.empty(ARRAYS_DEEP + 1, object)
    for index in range(len(sent)):
        sent[index] = [np.array([{"index": index}, None], object)]
    got = PICKLE.decode(bytes(PICKLE.encode(sent)))
    assert [each[0][0]["index"] for each in got] == list(range(ARRAYS_DEEP + 1))


def test_an_array_in_itself_is_refused() -> None:
    """The garbage collector could never free it, so that a stranger could fill the memory for good."""
    array = named(MODULE, "numpy_objects") + b"K\x01\x85" + b"]h\x00a" + b"\x86R"
    with pytest.raises(DecodeError, match="an array of objects contains itself"):
        PICKLE.decode(body(b"]\x94", array, b"a"))
    # A circle in an array is no circle of the array.
    got = PICKLE.decode(body(ours("numpy_objects", some(b"K\x01"), b"]" + b"]\x94" + b"h\x00a" + b"a")))
    assert got[0][0] is got[0]


def test_emptied() -> None:
    """Rejected containers are empty, so that no chain is left to be freed at once."""
    one, two = deque([1]), defaultdict(list, {1: [1]})
    three = np.array([[1], None], object)
    three.flags.writeable = False
    empty([one, two, three])
    assert not one
    assert not two
    assert three.tolist() == [None, None]


def test_nothing_is_checked_where_there_is_nothing() -> None:
    """No container, no error; and what is checked may be in what was made by the program's classes."""
    check([], set())
    kind = type("Kind", (), {})
    held: list[Any] = []
    for _ in range(DEEP + 1):
        made = kind()
        made.inside = held[-1:]
        held.append(deque([made]))
    check(held, set())
    with pytest.raises(NestingError):
        check(held, {kind})
    empty(held)


@pytest.mark.parametrize("end", [b"K\x05R", b"K\x05K\x05\x93", b"a"], ids=["call", "name", "append"])
def test_what_fails_at_its_end(end: bytes) -> None:
    """A chain that is never delivered is taken apart as well, and is not left to the garbage collector."""
    before = len(gc.get_objects())
    for _ in range(3):
        with pytest.raises(DecodeError):
            PICKLE.decode(body(chain("deque", 10 * DEEP), named(MODULE, "deque") + b"\x940", b"h\x00", end))
    gc.collect()
    assert len(gc.get_objects()) < before + DEEP


def test_a_name_left_behind_keeps_nothing() -> None:
    """A pickle that fails with a callable on the stack is freed: the garbage collector does not look at that stack."""
    made: list[weakref.ref[Any]] = []

    class Seen:
        def __init__(self) -> None:
            made.append(weakref.ref(self))

    Seen.__qualname__ = "Seen"
    serializer = PickleSerializer([Seen])
    with pytest.raises(DecodeError):
        serializer.decode(body(named(__name__, "Seen") + b")R", named(MODULE, "deque"), b"N" + b"R"))
    gc.collect()
    assert [each() for each in made] == [None]


def test_random_programs() -> None:
    """Whatever a pickle has, the process that reads it survives: with a stack of 1 MiB, in 3 GiB."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.serializers.pickling.programs", "0", "30"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
