"""Which of pickle's opcodes are read: those that our writer writes.

The others are where pickles are dangerous even if every name is checked. BUILD changes whatever is on the stack, the
classes and functions that were let in too, and gives types written in C a state that they do not check; PUT with an
index of 32 bits takes memory by the gigabyte; EXT finds classes by a number, past the check of names; INST, OBJ and the
text opcodes are other ways to what is here already.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["LARGEST_KEY", "STEPS_PER_BYTE", "OpcodeError", "check"]

#: How many values one key may have, the tuples in it counted as often as they stand there: their hash is computed by
#: recursion in C, which nothing stops.
LARGEST_KEY: Final = 10_000

#: And how many all keys may have for each byte of the stream. What our writer writes has less than one, but for tuples
#: that are keys more than once.
STEPS_PER_BYTE: Final = 16

#: A number counts in a key as one value more for so many bytes: its hash is not remembered.
_HASHED: Final = 64

_PROTOCOL = b"\x80\x05"

# Opcode to the bytes of its argument.
_FIXED = {
    **dict.fromkeys(b"N\x88\x89]ae)\x85\x86\x87t}su\x8f\x90\x91(01\x94\x93R\x81\x92Q\x97\x98", 0),
    **dict.fromkeys(b"Kh", 1),
    ord("M"): 2,
    **dict.fromkeys(b"Jj", 4),
    ord("G"): 8,
}
# Opcode to the bytes in which its argument's length is told.
_SIZED = {**dict.fromkeys(b"\x8cC\x8a", 1), **dict.fromkeys(b"XB\x8b", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}
_STOP = ord(".")
_LONG = 0x8B
_PART, _READ_ONLY = 0x97, 0x98
_FRAME = 0x95
_LENGTH = 8

_TUPLES = (b"\x85", b"\x86", b"\x87", b"t")
# What `_weigh` makes of them: they push what hashes at once; they make one of so many; they drop so many; they take all
# to the mark, some of them to hash it.
_PUSHED = frozenset(b"N\x88\x89])}\x8fJKMG\x97")
_MADE = {0x85: 1, 0x86: 2, 0x87: 3, ord("R"): 2, 0x81: 2, 0x92: 3}
_DROPPED = {ord("a"): 1, ord("s"): 2, ord("0"): 1}
_TO_MARK = frozenset(b"teu\x90\x911")
_SETS = frozenset(b"\x90\x91")

# Lengths that are read within the expression; longer ones are stepped over one at a time.
_SHORT = 24


def _expression() -> re.Pattern[bytes]:
    """A run of opcodes whose length it can tell, from the one that it is matched at."""
    none = b"".join(re.escape(bytes((code,))) for code, size in _FIXED.items() if not size and code < _PART)
    branches = [b"[" + none + b"]", b"%c%c?" % (_PART, _READ_ONLY)]
    branches += [b"%s.{%d}" % (re.escape(bytes((code,))), size) for code, size in _FIXED.items() if size]
    lengths = b"|".join(b"%s.{%d}" % (re.escape(bytes((size,))), size) for size in range(_SHORT + 1))
    branches += [b"%s(?:%s)" % (re.escape(bytes((code,))), lengths) for code, size in _SIZED.items() if size == 1]
    return re.compile(b"(?s:" + b"|".join(branches) + b")*+")


_RUN = _expression()


class OpcodeError(ValueError):
    """The stream is not one that our writer writes."""


def check(stream: Buffer) -> None:
    """Look through a stream before any of it is obeyed.

    Raises:
        OpcodeError: It has other opcodes, is cut short, has more behind its end, or keys that take too long to hash.
    """
    view = memoryview(stream)
    size = len(view)
    if view[:2] != _PROTOCOL:
        raise OpcodeError("it is no pickle of protocol 5")
    run = _RUN.match
    at, end, framed = 2, size, False
    # Counted with what only looks like one: it decides whether to look closely.
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
            # The unpickler drops what is left of a frame when an argument does not fit: what follows would be read
            # otherwise than here.
            end, framed = start + int.from_bytes(view[at + 1 : start], "little"), True
            at = start
        elif code in _SIZED:
            longs = longs or code == _LONG
            start = at + 1 + _SIZED[code]
            at = start + int.from_bytes(view[at + 1 : start], "little")
        elif code == _READ_ONLY:
            # Else each would make another view of one large part, whose hash as a key is computed anew.
            raise OpcodeError("it has READONLY_BUFFER, and not behind NEXT_BUFFER")
        elif code is None or code in _FIXED:
            raise OpcodeError("the pickle is cut short")
        else:
            raise OpcodeError(f"it has the opcode {_name(code)}, which this serializer does not write")
        if not start <= at <= end <= size:
            raise OpcodeError("the pickle is cut short")
    if at + 1 != size:
        raise OpcodeError("more stands behind the end of the pickle")
    if (gets and (tuples or longs)) or tuples > LARGEST_KEY:
        _weigh(view)


def _weigh(view: memoryview) -> None:
    """Refuse what it would take for ever to hash, or a crash: pushes and pops are followed, without any values.

    Each place on the stack has the steps that its hash takes. They multiply in tuples of tuples, each of which may stand
    in the next one many times; and a hash recurses no deeper than that.
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
                stack[-count:] = [min(1 + sum(stack[-count:]), most + 1)]
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
                    stack[mark:] = [min(1 + sum(stack[mark:]), most + 1)]
                else:
                    keys = stack[mark::2] if code == 0x75 else stack[mark:] if code in _SETS else []
                    steps += sum(keys) if max(keys, default=0) <= LARGEST_KEY else most + 1
                    stack[mark:] = [1] if code == 0x91 else []
            elif code == 0x51:
                # Whoever knows the ids may look them up.
                steps += stack[-1] if stack[-1] <= LARGEST_KEY else most + 1
                stack[-1] = 1
            elif code == 0x93:
                stack[-2:] = [1]
            elif code == _FRAME:
                at += _LENGTH
            else:
                at += _FIXED[code]
    except (IndexError, ValueError) as error:
        raise OpcodeError("it takes what is not there") from error
    if steps > most:
        raise OpcodeError("its keys are large numbers, or tuples of tuples, that it would take too long to hash")


def _name(code: int) -> str:
    import pickletools

    return next((each.name for each in pickletools.opcodes if each.code == chr(code)), f"0x{code:02x}")
