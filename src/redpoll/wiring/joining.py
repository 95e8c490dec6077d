"""How queues join an exchange, at the exchange's end: pipes are opened, opened again, and closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.errors import ProtocolError, WiringError
from redpoll.wiring.limits import Limits
from redpoll.wiring.names import Scope, Style
from redpoll.wiring.outlet import Outlet
from redpoll.wiring.pipe import Join, Pipe
from redpoll.wiring.words import field

if TYPE_CHECKING:
    from redpoll.wiring.board import Board
    from redpoll.wiring.trunk import Answer, Trunk

__all__ = ["attach", "leave"]


async def attach(board: Board, join: Join, trunk: Trunk, timeout: float | None) -> None:
    """Bind a queue that is at the other end of a trunk to an exchange of this wiring, for the first time or again.

    Raises:
        UnknownName: It is not there.
        WiringError: The other end says no.
        LinkError: It is gone; also `SendError`.
    """
    exchange = join.exchange
    exchange.stage_out()
    pipe = _pipe_to(board, join, trunk)
    outlet = pipe.outlet
    # What waits in a pipe that leads nowhere as yet is for whoever opens it.
    at = outlet.next if pipe.trunk is trunk else outlet.sent
    word: dict[str, Any] = {
        "word": "open",
        "pipe": pipe.number,
        "exchange": exchange.name,
        "everywhere": exchange.scope is Scope.GLOBAL,
        "queue": join.queue,
        "first": outlet.sent,
        "at": at,
        "missed": _missed(join, pipe, at),
    }
    # What the other end sends as soon as it has the pipe is to find it.
    trunk.pipes[pipe.number] = pipe
    pipe.opening += 1
    try:
        answer = await trunk.request(word, timeout)
        handle, window = field(answer, "handle", int), _window(answer)
        if exchange.closed or not trunk.up:
            raise WiringError(f"the exchange {exchange.name!r} is gone")  # noqa: TRY301  # as any other failure
    except BaseException:
        if pipe.opening == 1:
            _undo(join, pipe, trunk)
        raise
    finally:
        pipe.opening -= 1
    _joined(join, pipe, trunk)
    if pipe.trunk is trunk:
        outlet.grant(window)
    else:
        expected, taken = answer.get("expected"), answer.get("taken")
        known = type(expected) is int and type(taken) is int
        pipe.trunk, pipe.run, pipe.handle = trunk, trunk.run, handle
        outlet.open(window, expected if known else None, taken if known else None)
        if outlet.sent > word["first"] or known:
            trunk.send_mark(pipe, outlet.sent)
    if pipe not in exchange.pipes:
        exchange.pipes.append(pipe)
    pipe.pump()
    exchange.pipe_changed()


def _undo(join: Join, pipe: Pipe, trunk: Trunk) -> None:
    """It was not opened, as far as is known here; the other end may have done it."""
    if pipe.trunk is trunk:
        if join.queue not in pipe.joins and trunk.up:
            trunk.tell({"word": "close", "pipe": pipe.number, "queue": join.queue, "at": pipe.outlet.next})
    elif pipe in pipe.exchange.pipes:
        # The other end keeps it, and knows what is missing once it is opened again.
        trunk.pipes.pop(pipe.number, None)
    else:
        trunk.end(pipe)


def _pipe_to(board: Board, join: Join, trunk: Trunk) -> Pipe:
    """The pipe that is to bring messages to a queue: the one that is there, the one that did before, or a new one."""
    exchange = join.exchange
    if exchange.style is Style.DISTRIBUTE:
        for pipe in trunk.pipes.values():
            if pipe.exchange is exchange and not pipe.ending:
                return pipe
    former = join.pipe
    if former is not None and not former.ending and former in exchange.pipes and former.trunk in (None, trunk):
        return former
    return Pipe(exchange, board.next_number(), Outlet(exchange.limits, exchange.at_limit))


def _missed(join: Join, pipe: Pipe, at: int) -> int:
    """How many messages the owner of a queue, if it was started anew, is to be told are missing."""
    former = join.pipe
    if former is None:
        return 0
    # In another pipe there are other numbers.
    return max(0, (at if former is pipe else former.outlet.next) - join.base)


def _joined(join: Join, pipe: Pipe, trunk: Trunk) -> None:
    former = join.pipe
    if former is not None and former is not pipe:
        former.drop(join)
        if not former.joins:
            join.exchange.remove(former)
    join.pipe = pipe
    join.up = True
    join.base = pipe.outlet.taken
    pipe.add(join)
    trunk.pipes[pipe.number] = pipe


def leave(join: Join) -> dict[str, Any] | None:
    """Unbind a queue: what was sent before still goes there. What to tell its owner; None if nobody is to be told.

    If somebody else has bound it as well, nothing changes for it.
    """
    pipe = join.pipe
    join.pipe = None
    if pipe is None:
        return None
    pipe.exchange.stage_out()
    at = pipe.outlet.next
    trunk = pipe.trunk if join.up else None
    join.up = False
    if not pipe.drop(join):
        return None
    word = {"word": "close", "pipe": pipe.number, "queue": join.queue, "at": at}
    if trunk is not None and trunk.up:
        trunk.tell(word)
    if not pipe.joins:
        pipe.exchange.remove(pipe)
    return word


def _window(answer: Answer) -> Limits:
    """What the other end of a pipe says it has room for."""
    messages, size = answer.get("messages"), answer.get("bytes")
    for value in (messages, size):
        if value is not None and (type(value) is not int or not 1 <= value <= 2**62):
            raise ProtocolError(f"there is no room for {value!r}")
    return Limits(messages, size)
