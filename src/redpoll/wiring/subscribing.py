"""Joining of queues to an exchange, at the exchange's end: pipes are opened, reopened and closed."""

from __future__ import annotations

from itertools import chain
from typing import Any

from redpoll.errors import ConfigError, NameTaken, PeerLost, ProtocolError, UnknownName, WiringError
from redpoll.wiring.connection import Answer, Connection, Pipe, Subscription
from redpoll.wiring.names import Limits, Scope
from redpoll.wiring.protocol import field

__all__ = ["attach", "leave", "window_of"]


async def attach(
    subscription: Subscription,
    connection: Connection,
    timeout: float | None,
    pipe: Pipe | None = None,
    *,
    again: bool = False,
) -> Connection:
    """Bind a queue at the other end of a connection to an exchange of this wiring, for the first time or again.

    Args:
        subscription: The queue, and the exchange.
        connection: The connection.
        timeout: Seconds for the other end to answer; None is no limit.
        pipe: The lost pipe to be opened over it; None chooses one.
        again: True if the other end named another pipe before: it may do so once.

    Returns:
        The connection that carries it: another one if the other wiring has a pipe of the exchange over that.

    Raises:
        UnknownName: The other end has no such queue.
        WiringError: The other end refuses.
        LinkError: The other end is gone; also `SendError`.
    """
    exchange = subscription.exchange
    exchange.stage_out()
    pipe = pipe or _pipe_to(subscription, connection)
    # Messages that wait in a pipe without an other end are for the next one to open it for the same queue.
    at = pipe.sent if pipe.connection is not connection and subscription.queue in pipe.subscriptions else pipe.next
    word: dict[str, Any] = {
        "word": "open",
        "pipe": pipe.number,
        "exchange": exchange.name,
        "is_global": exchange.scope is Scope.GLOBAL,
        "queue": subscription.queue,
        "first": pipe.sent,
        "at": at,
        "missed": _missed(subscription, pipe, at),
    }
    if pipe.connection is not connection:
        # A queue that left and is bound again does not get what was sent in between.
        _close_untold(pipe, connection, pipe.sent)
    # The pipe must be known before the other end sends data for it, right after it has the pipe.
    connection.pipes[pipe.number] = connection.outgoing[subscription.key] = pipe
    pipe.opening.append(subscription)
    try:
        answer = await connection.request(word, timeout)
        elsewhere = field(answer, "elsewhere", int) if "elsewhere" in answer else None
        window = window_of(answer)
        expected, taken = answer.get("expected"), answer.get("taken")
        if type(expected) is not int or type(taken) is not int:
            expected = taken = None
        else:
            # Also if this end has lost the connection by now: the other end goes on behind what is missing there.
            exchange.count_unconfirmed(pipe.skip(expected, word["first"]))
        if exchange.closed or not connection.up:
            raise WiringError(f"the exchange {exchange.name!r} was deleted, or the link is lost")  # noqa: TRY301  # as any other failure
        if subscription not in pipe.opening:
            raise UnknownName("queue", subscription.queue)  # noqa: TRY301  # its owner took it away meanwhile
    except BaseException as error:
        _abandon(subscription, pipe, connection)
        if isinstance(error, NameTaken) and pipe.connection is connection and subscription.queue in pipe.subscriptions:
            # Each end has it by another connection, and would refuse each try.
            connection.give_up(PeerLost(connection.place, "the other end has the pipe by another connection"))
        raise
    if elsewhere is not None:
        _abandon(subscription, pipe, connection)
        if again:
            raise WiringError(f"the queue {subscription.queue!r} has another pipe of the exchange")
        found = _elsewhere(subscription, connection, elsewhere)
        if found is None:
            connection.tell({"word": "end", "pipe": elsewhere})
        elif found.connection is not None or not found.opened:
            if answer.get("lost"):
                found.carrier.give_up(PeerLost(found.carrier.place, "the other end no longer has the pipe"))
            else:
                connection = found.carrier
        return await attach(subscription, connection, timeout, found, again=True)
    pipe.opening.remove(subscription)
    _joined(subscription, pipe)
    if not pipe.opened:
        pipe.opened = True
        exchange.pipes.append(pipe)
    if pipe.connection is connection:
        pipe.grant(window)
        if expected is not None:
            # The pipe was lost at the other end alone: messages that had not arrived there are lost.
            connection.send_data(pipe, pipe.sent)
    else:
        pipe.carried_by(connection)
        exchange.count_unconfirmed(pipe.open(window, expected, taken))
        if pipe.sent > word["first"] or expected is not None:
            connection.send_data(pipe, pipe.sent)
        _close_untold(pipe, connection, pipe.next)
        pipe.untold.clear()
    for each in _left_behind(subscription, connection):
        _joined(each, pipe)
    pipe.pump()
    exchange.pipe_changed()
    return connection


def _close_untold(pipe: Pipe, connection: Connection, sent: int) -> None:
    """Take queues out of a pipe that left it while it was lost, and whose last message has a number before `sent`."""
    for queue, end in pipe.untold.items():
        if end <= sent and not pipe.leads_to(queue):
            connection.tell({"word": "close", "pipe": pipe.number, "queue": queue, "at": end})


def _elsewhere(subscription: Subscription, connection: Connection, number: int) -> Pipe | None:
    """Return the pipe by which a queue has an exchange already, as the other end of a connection says.

    Two wirings that dial each other by forwarded addresses have two connections. Identity and run are only claims, so it is
    the end of the queue that says which pipes end there.
    """
    same = (connection.identity, connection.run)
    exchange = subscription.exchange
    known = connection.board.connections.get(connection.identity, ())
    pipes = chain((each.pipes.get(number) for each in known), exchange.pipes)
    for pipe in pipes:
        if pipe is not None and pipe.number == number and pipe.exchange is exchange and not pipe.ending:
            return pipe if (pipe.carrier.identity, pipe.carrier.run) == same else None
    return None


def _abandon(subscription: Subscription, pipe: Pipe, connection: Connection) -> None:
    """Undo an attempt to open a pipe; the other end may have carried it out."""
    if subscription in pipe.opening:
        pipe.opening.remove(subscription)
    kept = pipe.connection is connection or pipe.opening
    if kept and connection.up and not pipe.leads_to(subscription.queue):
        connection.tell({"word": "close", "pipe": pipe.number, "queue": subscription.queue, "at": pipe.next})
    if pipe.opening:
        return
    if pipe.connection is None and not (pipe.opened and pipe.subscriptions):
        # Also if its last queue left meanwhile: it is not opened again, and its end is told behind the request to open it.
        pipe.carrier = connection
        pipe.exchange.remove(pipe)
    elif pipe.connection is not connection:
        # The other end keeps it, and knows what is missing when it is opened again; or another connection carries it.
        connection.forget(pipe)
    if not pipe.subscriptions and pipe.opened and not pipe.ending:
        pipe.exchange.remove(pipe)


def _pipe_to(subscription: Subscription, connection: Connection) -> Pipe:
    """Return the pipe for a queue: the existing one, the former one, or a new one."""
    exchange = subscription.exchange
    known = connection.outgoing.get(subscription.key)
    if known is not None and known.connection in (None, connection) and _takes(known, subscription):
        return known
    former = subscription.pipe
    if former is not None and not former.ending and former.connection in (None, connection):
        return former
    # If another pipe were used, messages that wait in a lost one would arrive twice once that is reopened.
    for pipe in exchange.pipes:
        lost = pipe.connection is None and pipe.key == subscription.key and _takes(pipe, subscription)
        if lost and pipe.carrier.leads_where(connection):
            return pipe
    return Pipe(subscription.key, connection)


def _takes(pipe: Pipe, subscription: Subscription) -> bool:
    """Return True if a queue can be added to a pipe: not while it is still leaving that."""
    return not pipe.ending and not pipe.awaits(subscription.queue)


def _missed(subscription: Subscription, pipe: Pipe, at: int) -> int:
    """Return the number of missing messages to report to a restarted owner of a queue."""
    former = subscription.pipe
    if former is None:
        return 0
    # Another pipe has other numbers.
    return max(0, (at if former is pipe else former.next) - subscription.base)


def _joined(subscription: Subscription, pipe: Pipe) -> None:
    former = subscription.pipe
    if former is not None and former is not pipe:
        former.drop(subscription)
        if not former.subscriptions and not former.opening:
            subscription.exchange.remove(former)
    subscription.pipe = pipe
    subscription.up = True
    subscription.base = pipe.taken
    pipe.add(subscription)


def _left_behind(subscription: Subscription, connection: Connection) -> list[Subscription]:
    """Return the subscriptions of a queue that has a pipe again, in lost pipes to its owner, perhaps to a former run of it.

    What these pipes kept from now on would arrive once more when one of them is opened again.
    """
    queue = subscription.queue
    return [
        each
        for pipe in subscription.exchange.pipes
        if pipe.connection is None and queue in pipe.subscriptions
        if pipe.carrier.leads_where(connection, any_run=True)
        for each in pipe.subscriptions[queue]
    ]


def leave(subscription: Subscription) -> None:
    """Unbind a queue, which still receives messages sent before. Nothing changes if it has another binding."""
    pipe = subscription.pipe
    subscription.pipe = None
    if pipe is None:
        return
    pipe.exchange.stage_out()
    connection = pipe.connection
    subscription.up = False
    if not pipe.drop(subscription) or pipe.leads_to(subscription.queue):
        return
    if connection is not None and connection.up:
        connection.tell({"word": "close", "pipe": pipe.number, "queue": subscription.queue, "at": pipe.next})
    else:
        pipe.untold[subscription.queue] = pipe.next
    if not pipe.subscriptions and not pipe.opening:
        pipe.exchange.remove(pipe)


def window_of(answer: Answer) -> Limits:
    """Return the limits that the other end of a pipe grants."""
    try:
        return Limits(answer.get("messages"), answer.get("bytes"))
    except ConfigError as error:
        raise ProtocolError(f"the limits of a queue: {error.text}") from error
