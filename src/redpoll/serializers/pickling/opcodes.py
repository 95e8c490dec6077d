"""The pickle opcodes that are read: those that the writer of this package writes.

The others make pickles dangerous even if every name is checked. BUILD changes any object on the stack, including
allowed classes and functions, and gives types written in C a state that they do not check; PUT with an index of 32 bits
allocates gigabytes; EXT finds classes by number, bypassing the check of names; INST, OBJ and the text opcodes duplicate
what is here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["LARGEST_KEY", "LARGE_LEVELS", "STEPS_PER_BYTE", "OpcodeError", "check"]

#: Maximum values in one key; tuples in it are counted each time they occur. Their hash is computed by recursion in C,
#: without a limit.
LARGEST_KEY: Final = 10_000

#: Maximum depth of nested tuples larger than that: a program may hash what it received.
LARGE_LEVELS: Final = 1000

#: Maximum values in all keys per byte of the stream. The writer of this package needs less than one, except for tuples
#: that are keys more than once.
STEPS_PER_BYTE: Final = 16

#: A number counts as one more value in a key per so many bytes: its hash is not cached.
_HASHED: Final = 64

# `_weigh` represents a tuple larger than a key may be by this, plus its depth.
_LARGE: Final = 1 << 62

_PROTOCOL = b"\x80\x05"

# Opcode to the size of its argument.
_FIXED = {
    **dict.fromkeys(b"N\x88\x89]ae)\x85\x86\x87t}su\x8f\x90\x91(01\x94\x93R\x81\x92Q\x97\x98", 0),
    **dict.fromkeys(b"Kh", 1),
    ord("M"): 2,
    **dict.fromkeys(b"Jj", 4),
    ord("G"): 8,
}
# Opcode to the size of the length of its argument.
_SIZED = {**dict.fromkeys(b"\x8cC\x8a", 1), **dict.fromkeys(b"XB\x8b", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}
_STOP = ord(".")
_LONG = 0x8B
_PART, _READ_ONLY = 0x97, 0x98
_FRAME = 0x95
_LENGTH = 8

_TUPLES = (b"\x85", b"\x86", b"\x87", b"t")
# For `_weigh`: opcodes that push a value which hashes at once; that combine so many values; that drop so many; that
# take all up to the mark, some to hash them.
_PUSHED = frozenset(b"N\x88\x89])}\x8fJKMG\x97")
_MADE = {0x85: 1, 0x86: 2, 0x87: 3, ord("R"): 2, 0x81: 2, 0x92: 3}
_DROPPED = {ord("a"): 1, ord("s"): 2, ord("0"): 1}
_TO_MARK = frozenset(b"teu\x90\x911")
_SETS = frozenset(b"\x90\x91")

# Lengths matched within the expression; longer arguments are skipped one at a time.
_SHORT = 24


def _expression() -> re.Pattern[bytes]:
    """Return an expression for a run of opcodes whose length it can tell, starting where it is matched."""
    none = b"".join(re.escape(bytes((code,))) for code, size in _FIXED.items() if not size and code < _PART)
    branches = [b"[" + none + b"]", b"%c%c?" % (_PART, _READ_ONLY)]
    branches += [b"%s.{%d}" % (re.escape(bytes((code,))), size) for code, size in _FIXED.items() if size]
    lengths = b"|".join(b"%s.{%d}" % (re.escape(bytes((size,))), size) for size in range(_SHORT + 1))
    branches += [b"%s(?:%s)" % (re.escape(bytes((code,))), lengths) for code, size in _SIZED.items() if size == 1]
    return re.compile(b"(?s:" + b"|".join(branches) + b")*+")


_RUN = _expression()


class OpcodeError(ValueError):
    """The writer of this package does not write such a stream."""


def check(stream: Buffer) -> None:
    """Check a stream before any of it is executed.

    Raises:
        OpcodeError: It has other opcodes, is truncated, has trailing bytes, or keys that take too long to hash.
    """
    view = memoryview(stream)
    size = len(view)
    if view[:2] != _PROTOCOL:
        raise OpcodeError("not a pickle of protocol 5")
    run = _RUN.match
    at, end, framed = 2, size, False
    # Arguments that look like one are counted too: the count decides whether to look closely.
    tuples = 0
    gets = False
    longs = False
    while True:
        found = run(view, at, end)
        if found is not None:
            whole = found[0]
            tuples += sum(map(whole.count, _TUPLES))
            gets = gets or b"h" in whole or b"j" in whole
            at = found.end()
        if at == end and framed:
            end, framed = size, False
            continue
        code = view[at] if at < end else None
        if code == _STOP:
            break
        if code == _FRAME and not framed:
            start = at + 1 + _LENGTH
            # The unpickler drops the rest of a frame if an argument does not fit: the following bytes would be read
            # otherwise than here.
            end, framed = start + int.from_bytes(view[at + 1 : start], "little"), True
            at = start
        elif code in _SIZED:
            longs = longs or code == _LONG
            start = at + 1 + _SIZED[code]
            at = start + int.from_bytes(view[at + 1 : start], "little")
        elif code == _READ_ONLY:
            # Otherwise each would create another view of one large part, whose hash as a key is computed anew.
            raise OpcodeError("READONLY_BUFFER without NEXT_BUFFER before it")
        elif code is None or code in _FIXED:
            raise OpcodeError("the pickle is truncated")
        else:
            raise OpcodeError(f"unsupported opcode {_name(code)}")
        if not start <= at <= end <= size:
            raise OpcodeError("the pickle is truncated")
    if at + 1 != size:
        raise OpcodeError("trailing bytes after the pickle")
    if (gets and (tuples or longs)) or tuples > LARGEST_KEY:
        _weigh(view)


def _weigh(view: memoryview) -> None:
    """Reject keys that would take too long to hash, or crash: pushes and pops are simulated, without values.

    Each entry of the stack has the number of steps that its hash takes. They multiply in tuples of tuples, each of
    which may be in the next one many times; and the recursion is no deeper than that number. For tuples larger than a
    key may be only the depth counts.
    """
    most = STEPS_PER_BYTE * len(view)
    stack: list[int] = []
    marks: list[int] = []
    memo: list[int] = []
    steps = 0
    at = 2
    try:
        while (code := view[at]) != _STOP:
            at += 1
            width = _SIZED.get(code)
            if width is not None:
                start = at + width
                length = int.from_bytes(view[at:start], "little")
                stack.append(1 + length // _HASHED if code == _LONG else 1)
                at = start + length
            elif code == 0x94:
                memo.append(stack[-1])
            elif code in _PUSHED:
                stack.append(1)
                at += _FIXED[code]
            elif code == 0x68:
                stack.append(memo[view[at]])
                at += 1
            elif code == 0x6A:
                stack.append(memo[int.from_bytes(view[at : at + 4], "little")])
                at += 4
            elif code in _MADE:
                count = _MADE[code]
                weight = 1 + sum(stack[-count:])
                stack[-count:] = [weight if weight <= LARGEST_KEY else _large(stack[-count:])]
            elif code == 0x28:
                marks.append(len(stack))
            elif code == 0x30 and marks and marks[-1] == len(stack):
                marks.pop()
            elif code in _DROPPED:
                if code == 0x73:
                    steps += stack[-2] if stack[-2] <= LARGEST_KEY else most + 1
                del stack[-_DROPPED[code] :]
            elif code in _TO_MARK:
                mark = marks.pop()
                if code == 0x74:
                    weight = 1 + sum(stack[mark:])
                    stack[mark:] = [weight if weight <= LARGEST_KEY else _large(stack[mark:])]
                else:
                    keys = stack[mark::2] if code == 0x75 else stack[mark:] if code in _SETS else []
                    steps += sum(keys) if max(keys, default=0) <= LARGEST_KEY else most + 1
                    stack[mark:] = [1] if code == 0x91 else []
            elif code == 0x51:
                # A program's persistent_load may look ids up.
                steps += stack[-1] if stack[-1] <= LARGEST_KEY else most + 1
                stack[-1] = 1
            elif code == 0x93:
                stack[-2:] = [1]
            elif code == _FRAME:
                at += _LENGTH
            else:
                at += _FIXED[code]
    except OpcodeError:
        raise
    except (IndexError, ValueError) as error:
        raise OpcodeError("it takes more values than there are") from error
    if steps > most:
        raise OpcodeError("keys are large numbers or nested tuples that take too long to hash")


def _large(items: list[int]) -> int:
    depth = 1 + max((each - _LARGE for each in items if each >= _LARGE), default=0)
    if depth > LARGE_LEVELS:
        raise OpcodeError(f"tuples are nested more than {LARGE_LEVELS} deep")
    return _LARGE + depth


def _name(code: int) -> str:
    import pickletools

    return next((each.name for each in pickletools.opcodes if each.code == chr(code)), f"0x{code:02x}")
