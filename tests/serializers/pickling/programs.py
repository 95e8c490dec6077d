"""Random pickles that nest, link and mix what may be in one another, decoded one after the other.

`python -m tests.serializers.pickling.programs FIRST COUNT` ends with 0 if each of them was read or refused, in a thread with
a small stack and in bounded memory.
"""

from __future__ import annotations

import gc
import random
import resource
import sys
import threading

import numpy as np

from redpoll.errors import DecodeError
from redpoll.serializers import PickleSerializer
from redpoll.serializers.pickling.names import MODULE
from tests.serializers.pickling.streams import body, named, text

STACK = 1024 * 1024
MEMORY = 3 * 1024**3


class Job:
    """Has attributes."""


class JobError(Exception):
    """Has arguments."""


class Row(tuple[object, ...]):
    """Has items."""

    __slots__ = ()


# What stands in the memo of each program, in this order.
_NAMES = ("deque", "defaultdict", "OrderedDict", "Counter", "numpy_objects", "state")
_DEQUE, _DEFAULTDICT, _ORDERED, _COUNTER, _OBJECTS, _STATE, _NONE, _NOTHING, _ONE, _JOB, _FAILED, _ROW, _FREE = range(
    13
)


def head() -> bytes:
    """Put the names, some arguments and the classes into the memo."""
    stream = b"".join(named(MODULE, name) + b"\x940" for name in _NAMES)
    stream += b"N\x85\x940" + b")\x940" + b"K\x01\x85\x940"
    return stream + b"".join(named(__name__, kind.__name__) + b"\x940" for kind in (Job, JobError, Row))


def get(index: int) -> bytes:
    """Push an object from the memo."""
    return b"h%c" % index if index < 256 else b"j" + index.to_bytes(4, "little")


def _called(name: int, arguments: int) -> bytes:
    return get(name) + get(arguments) + b"R"


# How a value is put into another: what stands before it, and behind it.
_WRAPS = (
    (b"]", b"a"),
    (b"](", b"e"),
    (b"}K\x00", b"s"),
    (b"}(K\x00", b"u"),
    (b"", b"\x85"),
    (b"(N", b"t"),
    (b"(", b"\x91"),
    (_called(_DEQUE, _NONE), b"a"),
    (_called(_DEFAULTDICT, _NONE) + b"K\x00", b"s"),
    (_called(_ORDERED, _NOTHING) + b"K\x00", b"s"),
    (_called(_COUNTER, _NOTHING) + b"K\x00", b"s"),
    (get(_OBJECTS) + get(_ONE) + b"]", b"a\x86R"),
    (get(_FAILED), b"\x85R"),
    (get(_ROW), b"\x85\x85\x81"),
)

_MAKES = {
    "list": b"]",
    "dict": b"}",
    "deque": _called(_DEQUE, _NONE),
    "defaultdict": _called(_DEFAULTDICT, _NONE),
    "OrderedDict": _called(_ORDERED, _NOTHING),
    "Job": get(_JOB) + b")\x81",
}

_OPCODES = b"N\x88\x89]ae)\x85\x86\x87t}su\x8f\x90\x91(01\x94\x93R\x81\x92Q\x97\x98"


def nested(chance: random.Random) -> bytes:
    """Put values into one another, in the order of a short pattern, and end well or not."""
    pattern = [chance.choice(_WRAPS) for _ in range(chance.choice((1, 1, 2, 3, 8)))]
    times = max(1, chance.choice((5, 1_000, 20_000, 60_000)) // len(pattern))
    before = b"".join(each[0] for each in pattern) * times
    behind = b"".join(each[1] for each in reversed(pattern)) * times
    core = chance.choice((b"N", b")", b"]", get(_DEQUE), _called(_DEQUE, _NONE)))
    end = chance.choice((b"", b"", b"", b"0N", b"K\x05R", b"\x85" * 20_000))
    return before + core + behind[: chance.choice((len(behind), len(behind), len(behind) // 2))] + end


def linked(chance: random.Random) -> bytes:
    """Make containers first and put them into one another afterwards: chains, rings, trees."""
    count = chance.choice((3, 20, 3_000, 10_000))
    kinds = [chance.choice(chance.sample(list(_MAKES), 3)) for _ in range(count)]
    stream = b"".join(_MAKES[kind] + b"\x940" for kind in kinds)
    way = chance.choice(("chain", "back", "random", "ring", "tree"))
    for index, kind in enumerate(kinds):
        other = {
            "chain": index + 1,
            "back": index - 1,
            "random": chance.randrange(count),
            "ring": (index + 1) % count,
            "tree": (index - 1) // 2,
        }[way]
        if not 0 <= other < count:
            continue
        item = get(_FREE + other)
        if chance.random() < 0.2:
            item = get(_OBJECTS) + get(_ONE) + b"]" + item + b"a\x86R"
        into = get(_FREE + index)
        if kind in {"list", "deque"}:
            stream += into + item + b"a0"
        elif kind == "Job":
            stream += get(_STATE) + into + b"}" + text("x") + item + b"s\x86R0"
        else:
            stream += into + b"K\x00" + item + b"s0"
    everything = [get(_FREE + index) for index in range(count)]
    ends = (everything[0], everything[-1], b"N", b"R", b"(" + b"".join(everything) + b"t")
    return stream + chance.choice(ends)


def noise(chance: random.Random) -> bytes:
    """Any opcodes at all."""
    pieces = [
        *(bytes((code,)) for code in _OPCODES),
        *(get(index) for index in range(_FREE + 2)),
        *(_MAKES.values()),
        text("x"),
        text("__class__"),
        b"K\x07",
    ]
    return b"".join(chance.choices(pieces, k=chance.choice((5, 30, 300))))


def decode(seed: int) -> bool:
    """Decode one and drop what it made; return True if it was read."""
    chance = random.Random(seed)
    program = chance.choice((nested, nested, linked, linked, noise))
    stream = head() + program(chance)
    serializer = PickleSerializer([Job, JobError, Row])
    try:
        value = serializer.decode(body(stream))
    except DecodeError:
        return False
    try:
        hash(value)
    except (TypeError, RecursionError):
        pass
    return True


def main(first: int, count: int) -> int:
    """Decode so many; print how many were read."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    threading.stack_size(STACK)
    read: list[bool] = []

    def run() -> None:
        for seed in range(first, first + count):
            print(seed, file=sys.stderr, flush=True)
            read.append(decode(seed))
            gc.collect()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    print(sum(read), "of", len(read), "were read; numpy", np.__version__)
    return 0 if len(read) == count else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
