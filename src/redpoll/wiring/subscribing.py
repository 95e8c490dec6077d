"""Joining of queues to an exchange, at the exchange's end: pipes are opened, reopened and closed."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from redpoll.errors import PeerLost, ProtocolError, UnknownName, WiringError
from redpoll.wiring.connection import Answer, Connection, Pipe, Subscription
from redpoll.wiring.names import Limits, Scope, Style
from redpoll.wiring.protocol import field
from redpoll.wiring.sender import Sender

__all__ = ["attach", "leave", "window_of"]

#: Maximum handle of a pipe: one that a message can carry.
_HANDLES: Final = 2**32 - 1


async def attach(subscription: Subscription, connection: Connection, timeout: float | None) -> Connection:
    """Bind a queue at the other end of a connection to an exchange of this wiring, for the first time or again.

    Returns:
        The connection that carries it: another one if the other wiring has a pipe of the exchange over that.

    Raises:
        UnknownName: The other end has no such queue.
        WiringError: The other end refuses.
        LinkError: The other end is gone; also `SendError`.
    """
    exchange = subscription.exchange
    while undecided := _undecided(subscription, connection):
        await exchange.opening[undecided[0]].wait()
    exchange.stage_out()
    pipe = _pipe_to(subscription, connection)
    sender = pipe.sender
    # Messages that wait in a pipe without an other end are for the next one to open it.
    at = sender.next if pipe.connection is connection else sender.sent
    word: dict[str, Any] = {
        "word": "open",
        "pipe": pipe.number,
        "exchange": exchange.name,
        "is_global": exchange.scope is Scope.GLOBAL,
        "queue": subscription.queue,
        "first": sender.sent,
        "at": at,
        "missed": _missed(subscription, pipe, at),
    }
    others = {} if pipe.connection is connection else _elsewhere(subscription, connection)
    carriers = {each.number: carrier for each, carrier in others.items()}
    if carriers:
        word["elsewhere"] = list(carriers)
        pipe.disputed = True
    # The pipe must be known before the other end sends data for it, right after it has the pipe.
    connection.pipes[pipe.number] = pipe
    if exchange.style is Style.BALANCE:
        pipe.queue = subscription.queue
        connection.balanced[exchange, subscription.queue] = pipe
    exchange.opening.setdefault(pipe, asyncio.Event())
    pipe.opening.append(subscription)
    try:
        answer = await connection.request(word, timeout)
        carrier = carriers.get(field(answer, "elsewhere", int)) if "elsewhere" in answer else None
        lost = carrier is not None and answer.get("lost") is True
        handle = field(answer, "handle", int) if carrier is None else 0
        if not 0 <= handle <= _HANDLES:
            raise ProtocolError(f"no pipe has the handle {handle}: it is 0 to {_HANDLES}")  # noqa: TRY301  # as below
        window = window_of(answer)
        if exchange.closed or not connection.up:
            raise WiringError(f"the exchange {exchange.name!r} was deleted, or the link is lost")  # noqa: TRY301  # as any other failure
        if subscription not in pipe.opening:
            raise UnknownName("queue", subscription.queue)  # noqa: TRY301  # its owner took it away meanwhile
    except BaseException:
        _opened(subscription, pipe)
        _undo(subscription, pipe, connection)
        raise
    _opened(subscription, pipe)
    if carrier is not None:
        _undo(subscription, pipe, connection)
        if lost:
            carrier.give_up(PeerLost(carrier.place, "it has a pipe no more"))
        return await attach(subscription, connection if lost else carrier, timeout)
    _joined(subscription, pipe, connection)
    if pipe.carrier is None:
        exchange.pipes.append(pipe)
    if pipe.connection is connection:
        sender.grant(window)
        if "expected" in answer:
            # The pipe was lost at the other end alone: messages that had not arrived there are lost.
            connection.send_data(pipe, sender.sent)
    else:
        expected, taken = answer.get("expected"), answer.get("taken")
        known = type(expected) is int and type(taken) is int
        pipe.connection = pipe.carrier = connection
        pipe.handle = handle
        exchange.count_unconfirmed(sender.open(window, expected if known else None, taken if known else None))
        if sender.sent > word["first"] or known:
            connection.send_data(pipe, sender.sent)
    pipe.pump()
    exchange.pipe_changed()
    return connection


def _undecided(subscription: Subscription, connection: Connection) -> list[Pipe]:
    """Return the pipes that the other end may not know yet: it may answer that another pipe leads there."""
    exchange = subscription.exchange
    known = _known(subscription, connection)
    new = [known] if known is not None and known.disputed and known not in exchange.pipes else []
    lost = [each for each in _elsewhere(subscription, connection) if each.connection is None]
    return [each for each in (*new, *lost) if each in exchange.opening]


def _opened(subscription: Subscription, pipe: Pipe) -> None:
    """Note the end of an attempt to open a pipe for a subscription."""
    if subscription in pipe.opening:
        pipe.opening.remove(subscription)
    if not pipe.opening:
        opening = pipe.exchange.opening.pop(pipe, None)
        if opening is not None:
            opening.set()


def _undo(subscription: Subscription, pipe: Pipe, connection: Connection) -> None:
    """Undo a failed attempt to open a pipe; the other end may have carried it out."""
    exchange = pipe.exchange
    kept = pipe.connection is connection or pipe.opening
    if kept and connection.up and not pipe.leads_to(subscription.queue):
        connection.tell({"word": "close", "pipe": pipe.number, "queue": subscription.queue, "at": pipe.sender.next})
    if pipe.opening:
        return
    if pipe.connection is None:
        if pipe in exchange.pipes:
            # The other end keeps it, and knows what is missing when it is opened again.
            connection.pipes.pop(pipe.number, None)
        else:
            connection.end(pipe)
    if not pipe.subscriptions and pipe in exchange.pipes:
        exchange.remove(pipe)


def _pipe_to(subscription: Subscription, connection: Connection) -> Pipe:
    """Return the pipe for a queue: the existing one, the former one, or a new one."""
    known = _known(subscription, connection)
    if known is not None:
        return known
    exchange = subscription.exchange
    former = subscription.pipe
    if (
        former is not None
        and not former.ending
        and former in exchange.pipes
        and former.connection in (None, connection)
    ):
        return former
    # If another pipe were used, messages that wait in a lost one would arrive twice once that is reopened.
    lost = (
        each for each in exchange.pipes if each.connection is None and each.led_where(connection) and not each.ending
    )
    if exchange.style is Style.BALANCE:
        lost = (each for each in lost if each.leads_to(subscription.queue))
    return next(lost, None) or Pipe(
        exchange, connection.board.next_number(), Sender(exchange.limits, exchange.at_limit)
    )


def _known(subscription: Subscription, connection: Connection) -> Pipe | None:
    """Return the pipe over a connection that a queue joins, open or being opened; None if there is none."""
    exchange = subscription.exchange
    if exchange.style is Style.DISTRIBUTE:
        for pipe in (*exchange.pipes, *exchange.opening):
            if connection.pipes.get(pipe.number) is pipe and not pipe.ending:
                return pipe
    else:
        # Each queue has one pipe, however many bindings it has.
        known = connection.balanced.get((exchange, subscription.queue))
        if known is not None and connection.pipes.get(known.number) is known and known.leads_to(subscription.queue):
            return known
    return None


def _elsewhere(subscription: Subscription, connection: Connection) -> dict[Pipe, Connection]:
    """Return the pipes that may lead to the other end of a connection, with the connections that carry them.

    Two wirings that dial each other by forwarded addresses have two connections. Identity and run are only claims, so the
    other end is asked which of these pipes end there. A name that a connection does not see is not sent over another one.
    """
    found: dict[Pipe, Connection] = {}
    for other in connection.board.connections.get((connection.identity, connection.run), ()):
        pipe = (
            _known(subscription, other)
            if other is not connection and other.sees_process == connection.sees_process
            else None
        )
        if pipe is not None:
            found[pipe] = other
    return found


def _missed(subscription: Subscription, pipe: Pipe, at: int) -> int:
    """Return the number of missing messages to report to a restarted owner of a queue."""
    former = subscription.pipe
    if former is None:
        return 0
    # Another pipe has other numbers.
    return max(0, (at if former is pipe else former.sender.next) - subscription.base)


def _joined(subscription: Subscription, pipe: Pipe, connection: Connection) -> None:
    former = subscription.pipe
    if former is not None and former is not pipe:
        former.drop(subscription)
        if not former.subscriptions and not former.opening:
            subscription.exchange.remove(former)
    subscription.pipe = pipe
    subscription.up = True
    subscription.base = pipe.sender.taken
    pipe.add(subscription)
    connection.pipes[pipe.number] = pipe


def leave(subscription: Subscription) -> dict[str, Any] | None:
    """Unbind a queue, which still receives messages sent before; return the word for its owner, or None.

    Nothing changes if the queue has another binding.
    """
    pipe = subscription.pipe
    subscription.pipe = None
    if pipe is None:
        return None
    pipe.exchange.stage_out()
    at = pipe.sender.next
    connection = pipe.connection if subscription.up else None
    subscription.up = False
    if not pipe.drop(subscription) or pipe.leads_to(subscription.queue):
        return None
    word = {"word": "close", "pipe": pipe.number, "queue": subscription.queue, "at": at}
    if connection is not None and connection.up:
        connection.tell(word)
    if not pipe.subscriptions and not pipe.opening:
        pipe.exchange.remove(pipe)
    return word


def window_of(answer: Answer) -> Limits:
    """Return the limits that the other end of a pipe grants."""
    messages, size = answer.get("messages"), answer.get("bytes")
    for value in (messages, size):
        if value is not None and (type(value) is not int or not 1 <= value <= 2**62):
            raise ProtocolError(f"expected a limit of 1 to 2**62 or None, not {value!r}")
    return Limits(messages, size)
