"""Authorization of clients: a rule for each record, and for each call by name.

A client needs no permission for its own consumers, deliveries and requests, since the records that made them were checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final, NamedTuple

from redpoll.bus.broker.broker import Broker
from redpoll.bus.broker.permissions import CONSUME, PUBLISH, READ, Permissions, Word, title_of
from redpoll.bus.broker.queue import Peer, Queue, Task
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.records import QueueKind
from redpoll.errors import NotAuthorized

__all__ = ["RULES", "authorize", "may_see"]

#: The words for publishing and for subscribing, by the first word of the subjects of a pattern, which is no part of the name.
_PATTERNS: Final[Mapping[str, tuple[Word, Word]]] = {
    "rpc": ("call", "serve"),
    "broadcast": ("publish", "subscribe"),
    "notifications": ("publish", "subscribe"),
}
_Words = Mapping[QueueKind, Word]
_ADMINISTER: Final[_Words] = {"task": "administer", "rpc": "administer", "events": "administer"}
_DELETE: Final[_Words] = {**_ADMINISTER, "events": "subscribe"}


class _Case(NamedTuple):
    """A request of a client, as its rule sees it."""

    rights: Permissions
    broker: Broker
    member: Peer

    def require(self, name: str, words: _Words, *others: Word, there: bool = True) -> None:
        """Require the word for the kind of a queue, or one of the others.

        Args:
            name: Name of the queue.
            words: The words by kind.
            others: The others.
            there: Whether a queue that does not exist is told later; otherwise it is one of tasks.
        """
        queue = self.broker.queues.found.get(name)
        if queue is not None:
            self.rights.require(words[queue.spec.kind], queue.title, *others)
        elif not there:
            self.rights.require(words["task"], name, *others)

    def of_task(self, task: bytes, words: _Words, *others: Word) -> None:
        """Require the word for the queue of a task, except for a task that the client submitted while this hub runs."""
        found = self.broker.work.find(p.id_number(task), monotonic())
        if isinstance(found, Task):
            if found.peer is not self.member:
                self.require(found.queue.name, words, *others)
        elif found is not None:
            self.require(found.queue, words, *others, there=False)


def may_see(rights: Permissions, kind: QueueKind, title: str) -> bool:
    """Return True if the client has any permission for a queue: it may declare it then, and see it in lists."""
    words: list[Word] = [PUBLISH[kind], CONSUME[kind], "administer"]
    # Publishers declare the queues of notifications, so that these wait for the first listener.
    return any(rights.allow(word, title) for word in (*words, *(("publish",) if kind == "events" else ())))


def _of_subject(subject: str) -> tuple[str, Word, Word]:
    """Return the name of a subject, or a pattern, for permissions, and the words for publishing it and subscribing to it."""
    first, _, rest = subject.partition(".")
    if first not in _PATTERNS or not rest:
        return subject, "publish", "subscribe"
    return rest, *_PATTERNS[first]


def _may_subscribe(rights: Permissions, pattern: str, *others: Word) -> None:
    name, _, word = _of_subject(pattern)
    anything = pattern.partition(".")[0] in {"*", "#"}
    rights.require_pattern("#" if anything else name, word, *others)
    if anything:
        # It matches subjects of calls too.
        rights.require_pattern("#", "serve")


# The rules: each is given the case, and what the record or the call has.


def _own(case: _Case, *_: Any) -> None:
    """Allow the request: it is about the client's own consumers, deliveries or requests."""


def _everything(case: _Case, *_: Any) -> None:
    case.rights.require_pattern("#", "administer")


def _administer(case: _Case, queue: str, *_: Any) -> None:
    case.require(queue, _ADMINISTER)


def _publish(case: _Case, _request: int, queue: str, *_: Any) -> None:
    case.require(queue, PUBLISH)


def _steps(case: _Case, _request: int, tasks: list[Any], *_: Any) -> None:
    for task in tasks:
        case.require(p.queue_of(task[0] if isinstance(task, list) and task else None), PUBLISH)


def _event(case: _Case, _request: int, subject: str, *_: Any) -> None:
    name, publish = _of_subject(subject)[:2]
    case.rights.require(publish, name)


def _consume(case: _Case, _request: int, _number: int, queue: str, *_: Any) -> None:
    case.require(queue, CONSUME)


def _done(case: _Case, *values: Any) -> None:
    for publication in values[-1]:
        case.require(p.queue_of(publication), PUBLISH)


def _subscribe(case: _Case, _request: int, _number: int, patterns: list[Any], *_: Any) -> None:
    for pattern in p.texts(patterns):
        _may_subscribe(case.rights, pattern)


def _watch(case: _Case, _request: int, task: bytes) -> None:
    case.of_task(task, READ)


def _lookup(case: _Case, task: bytes) -> None:
    found = case.broker.tasks.found.get(p.id_number(task))
    holder = None if found is None else found.consumer
    # A worker may look at what it holds: so the server of a stream sees that its caller is gone.
    if found is None or holder is None or holder.peer is not case.member or holder.held.get(found.token) is not found:
        case.of_task(task, READ, "administer")


def _steer(case: _Case, task: bytes, *_: Any) -> None:
    case.of_task(task, PUBLISH, "administer")


def _declare(case: _Case, values: dict[str, Any], update: bool) -> None:
    spec = p.rebuild_spec(values)
    rights, title = case.rights, title_of(spec)
    if not may_see(rights, spec.kind, title):
        raise NotAuthorized(f"{rights.name!r} may not use {spec.name!r}")
    queue = case.broker.queues.found.get(spec.name)
    if update and queue is not None and queue.spec != spec:
        case.require(spec.name, _ADMINISTER)
    if spec.dead_letter is not None:
        case.require(spec.dead_letter, PUBLISH, there=False)
    for pattern in spec.topics:
        _may_subscribe(rights, pattern, "publish")


def _delete(case: _Case, queue: str, *_: Any) -> None:
    case.require(queue, _DELETE, "administer")


def _inspect(case: _Case, queue: str) -> None:
    found: Queue | None = case.broker.queues.found.get(queue)
    if found is None or not may_see(case.rights, found.spec.kind, found.title):
        raise NotAuthorized(f"{case.rights.name!r} may not use {queue!r}")


def _move(case: _Case, source: str, target: str, *_: Any) -> None:
    case.require(source, _ADMINISTER)
    case.require(target, PUBLISH)


def _schedule(case: _Case, name: str, task: list[Any], *_: Any) -> None:
    case.require(p.queue_of(task), PUBLISH)
    _unschedule(case, name)


def _unschedule(case: _Case, name: str) -> None:
    found = case.broker.schedules.found.get(name)
    if found is not None:
        case.require(found.queue, PUBLISH)


RULES: Final[Mapping[int | str, Callable[..., None]]] = {
    p.GOODBYE: _own,
    p.PUBLISH: _publish,
    p.STEPS: _steps,
    p.EVENT: _event,
    p.WITHDRAW: _own,
    p.CONSUME: _consume,
    p.TAKE: _consume,
    p.CREDIT: _own,
    p.AHEAD: _own,
    p.BACK: _own,
    p.RESUME: _own,
    p.CLOSE: _own,
    p.RECLAIM: _own,
    p.SETTLE: _own,
    p.ACCEPT: _own,
    p.DONE: _done,
    p.REJECT: _own,
    p.PROGRESS: _own,
    p.SUBSCRIBE: _subscribe,
    p.UNSUBSCRIBE: _own,
    p.WATCH: _watch,
    "declare": _declare,
    "delete": _delete,
    "queues": _own,  # those that it may see
    "inspect": _inspect,
    "cancel": _steer,
    "claim": _own,  # of the queue of a consumer
    "tell": _steer,
    "lookup": _lookup,
    "browse": _administer,
    "purge": _administer,
    "move": _move,
    "pause": _administer,
    "redrive": _administer,
    "schedule": _schedule,
    "unschedule": _unschedule,
    "schedules": _own,  # those of queues that it may see
    "observe": _everything,
    "check": _everything,
    "backup": _everything,
}
"""The rule of each record except HELLO, which identifies the client, and CALL, whose calls have rules of their own."""


def authorize(rights: Permissions, broker: Broker, member: Peer, record: list[Any]) -> None:
    """Check a request of a client.

    Args:
        rights: Its permissions.
        broker: The broker.
        member: The client, at the broker.
        record: The record, complete.

    Raises:
        NotAuthorized: It may not, or there is no rule for it.
        ProtocolError: What is in the record has other parts than it should.
    """
    kind, values = record[0], record[1:]
    if kind == p.CALL:
        _, kind, values = values
    rule = RULES.get(kind)
    if rule is None:
        raise NotAuthorized(f"{rights.name!r} may not {kind!r}: this hub has no rule for it")
    rule(_Case(rights, broker, member), *values)
