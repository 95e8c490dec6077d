"""Joining of queues to an exchange, at the exchange's end: pipes are opened, reopened and closed."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from redpoll.errors import PeerLost, ProtocolError, UnknownName, WiringError
from redpoll.wiring.connection import Answer, Join, Pipe, Trunk
from redpoll.wiring.names import Limits, Scope, Style
from redpoll.wiring.outlet import Outlet
from redpoll.wiring.protocol import field

__all__ = ["attach", "leave", "window_of"]

#: Maximum handle of a pipe: one that a message can carry.
_HANDLES: Final = 2**32 - 1


async def attach(join: Join, trunk: Trunk, timeout: float | None) -> Trunk:
    """Bind a queue at the other end of a trunk to an exchange of this wiring, for the first time or again.

    Returns:
        The trunk that carries it: another one if the other wiring has a pipe of the exchange over that.

    Raises:
        UnknownName: The other end has no such queue.
        WiringError: The other end refuses.
        LinkError: The other end is gone; also `SendError`.
    """
    exchange = join.exchange
    while undecided := _undecided(join, trunk):
        await exchange.opening[undecided[0]].wait()
    exchange.stage_out()
    pipe = _pipe_to(join, trunk)
    outlet = pipe.outlet
    # Messages that wait in a pipe without an other end are for the next one to open it.
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
    others = {} if pipe.trunk is trunk else _elsewhere(join, trunk)
    carriers = {each.number: carrier for each, carrier in others.items()}
    if carriers:
        word["elsewhere"] = list(carriers)
        pipe.disputed = True
    # The pipe must be known before the other end sends data for it, right after it has the pipe.
    trunk.pipes[pipe.number] = pipe
    if exchange.style is Style.BALANCE:
        pipe.queue = join.queue
        trunk.balanced[exchange, join.queue] = pipe
    exchange.opening.setdefault(pipe, asyncio.Event())
    pipe.opening.append(join)
    try:
        answer = await trunk.request(word, timeout)
        carrier = carriers.get(field(answer, "elsewhere", int)) if "elsewhere" in answer else None
        lost = carrier is not None and answer.get("lost") is True
        handle = field(answer, "handle", int) if carrier is None else 0
        if not 0 <= handle <= _HANDLES:
            raise ProtocolError(f"no pipe has the handle {handle}: it is 0 to {_HANDLES}")  # noqa: TRY301  # as below
        window = window_of(answer)
        if exchange.closed or not trunk.up:
            raise WiringError(f"the exchange {exchange.name!r} was deleted, or the link is lost")  # noqa: TRY301  # as any other failure
        if join not in pipe.opening:
            raise UnknownName("queue", join.queue)  # noqa: TRY301  # its owner took it away meanwhile
    except BaseException:
        _opened(join, pipe)
        _undo(join, pipe, trunk)
        raise
    _opened(join, pipe)
    if carrier is not None:
        _undo(join, pipe, trunk)
        if lost:
            carrier.give_up(PeerLost(carrier.place, "it has a pipe no more"))
        return await attach(join, trunk if lost else carrier, timeout)
    _joined(join, pipe, trunk)
    if pipe.carrier is None:
        exchange.pipes.append(pipe)
    if pipe.trunk is trunk:
        outlet.grant(window)
        if "expected" in answer:
            # The pipe was lost at the other end alone: messages that had not arrived there are lost.
            trunk.send_data(pipe, outlet.sent)
    else:
        expected, taken = answer.get("expected"), answer.get("taken")
        known = type(expected) is int and type(taken) is int
        pipe.trunk = pipe.carrier = trunk
        pipe.handle = handle
        exchange.count_unconfirmed(outlet.open(window, expected if known else None, taken if known else None))
        if outlet.sent > word["first"] or known:
            trunk.send_data(pipe, outlet.sent)
    pipe.pump()
    exchange.pipe_changed()
    return trunk


def _undecided(join: Join, trunk: Trunk) -> list[Pipe]:
    """Return the pipes that the other end may not know yet: it may answer that another pipe leads there."""
    exchange = join.exchange
    known = _known(join, trunk)
    new = [known] if known is not None and known.disputed and known not in exchange.pipes else []
    lost = [each for each in _elsewhere(join, trunk) if each.trunk is None]
    return [each for each in (*new, *lost) if each in exchange.opening]


def _opened(join: Join, pipe: Pipe) -> None:
    """Note the end of an attempt to open a pipe for a join."""
    if join in pipe.opening:
        pipe.opening.remove(join)
    if not pipe.opening:
        opening = pipe.exchange.opening.pop(pipe, None)
        if opening is not None:
            opening.set()


def _undo(join: Join, pipe: Pipe, trunk: Trunk) -> None:
    """Undo a failed attempt to open a pipe; the other end may have carried it out."""
    exchange = pipe.exchange
    kept = pipe.trunk is trunk or pipe.opening
    if kept and trunk.up and not pipe.leads_to(join.queue):
        trunk.tell({"word": "close", "pipe": pipe.number, "queue": join.queue, "at": pipe.outlet.next})
    if pipe.opening:
        return
    if pipe.trunk is None:
        if pipe in exchange.pipes:
            # The other end keeps it, and knows what is missing when it is opened again.
            trunk.pipes.pop(pipe.number, None)
        else:
            trunk.end(pipe)
    if not pipe.joins and pipe in exchange.pipes:
        exchange.remove(pipe)


def _pipe_to(join: Join, trunk: Trunk) -> Pipe:
    """Return the pipe for a queue: the existing one, the former one, or a new one."""
    known = _known(join, trunk)
    if known is not None:
        return known
    exchange = join.exchange
    former = join.pipe
    if former is not None and not former.ending and former in exchange.pipes and former.trunk in (None, trunk):
        return former
    # If another pipe were used, messages that wait in a lost one would arrive twice once that is reopened.
    lost = (each for each in exchange.pipes if each.trunk is None and each.led_where(trunk) and not each.ending)
    if exchange.style is Style.BALANCE:
        lost = (each for each in lost if each.leads_to(join.queue))
    return next(lost, None) or Pipe(exchange, trunk.board.next_number(), Outlet(exchange.limits, exchange.at_limit))


def _known(join: Join, trunk: Trunk) -> Pipe | None:
    """Return the pipe over a trunk that a queue joins, open or being opened; None if there is none."""
    exchange = join.exchange
    if exchange.style is Style.DISTRIBUTE:
        for pipe in (*exchange.pipes, *exchange.opening):
            if trunk.pipes.get(pipe.number) is pipe and not pipe.ending:
                return pipe
    else:
        # Each queue has one pipe, however many bindings it has.
        known = trunk.balanced.get((exchange, join.queue))
        if known is not None and trunk.pipes.get(known.number) is known and known.leads_to(join.queue):
            return known
    return None


def _elsewhere(join: Join, trunk: Trunk) -> dict[Pipe, Trunk]:
    """Return the pipes that may lead to the other end of a trunk, with the trunks that carry them.

    Two wirings that dial each other by forwarded addresses have two trunks. Identity and run are only claims, so the other
    end is asked which of these pipes end there. A name that a trunk does not see is not sent over another trunk.
    """
    found: dict[Pipe, Trunk] = {}
    for other in trunk.board.trunks.get((trunk.identity, trunk.run), ()):
        pipe = _known(join, other) if other is not trunk and other.sees_process == trunk.sees_process else None
        if pipe is not None:
            found[pipe] = other
    return found


def _missed(join: Join, pipe: Pipe, at: int) -> int:
    """Return the number of missing messages to report to a restarted owner of a queue."""
    former = join.pipe
    if former is None:
        return 0
    # Another pipe has other numbers.
    return max(0, (at if former is pipe else former.outlet.next) - join.base)


def _joined(join: Join, pipe: Pipe, trunk: Trunk) -> None:
    former = join.pipe
    if former is not None and former is not pipe:
        former.drop(join)
        if not former.joins and not former.opening:
            join.exchange.remove(former)
    join.pipe = pipe
    join.up = True
    join.base = pipe.outlet.taken
    pipe.add(join)
    trunk.pipes[pipe.number] = pipe


def leave(join: Join) -> dict[str, Any] | None:
    """Unbind a queue, which still receives messages sent before; return the word for its owner, or None.

    Nothing changes if the queue has another binding.
    """
    pipe = join.pipe
    join.pipe = None
    if pipe is None:
        return None
    pipe.exchange.stage_out()
    at = pipe.outlet.next
    trunk = pipe.trunk if join.up else None
    join.up = False
    if not pipe.drop(join) or pipe.leads_to(join.queue):
        return None
    word = {"word": "close", "pipe": pipe.number, "queue": join.queue, "at": at}
    if trunk is not None and trunk.up:
        trunk.tell(word)
    if not pipe.joins and not pipe.opening:
        pipe.exchange.remove(pipe)
    return word


def window_of(answer: Answer) -> Limits:
    """Return the limits that the other end of a pipe grants."""
    messages, size = answer.get("messages"), answer.get("bytes")
    for value in (messages, size):
        if value is not None and (type(value) is not int or not 1 <= value <= 2**62):
            raise ProtocolError(f"expected a limit of 1 to 2**62 or None, not {value!r}")
    return Limits(messages, size)
