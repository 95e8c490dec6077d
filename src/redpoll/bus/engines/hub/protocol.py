"""The protocol between a hub and its clients: one Node message is a list of records, each a list that begins with its kind.

| kind | rest | meaning |
|---|---|---|
| HELLO | version, name, token | the client is there, or again; before all else |
| ALIVE | name, token | the client that said hello with both lives, whatever its link says; by another link of its process |
| BEGUN | name, token, question, begun | by the other link, the answer to STALLED: up to which token each consumer has begun |
| GOODBYE | | it does not return: what it holds goes back |
| PUBLISH | request, queue, payload, watched, and the options of `Engine.publish` in their order | a task |
| STEPS | request, tasks, timeout | tasks published together: task, places of those before it, collect, watcher or 0 |
| EVENT | request, subject, payload, mandatory, last, timeout | an event |
| WITHDRAW | request | stop waiting for room |
| CONSUME | request, consumer, queue, credit, accept, exclusive, automatic | `Engine.consume`; `take` is not automatic |
| TAKE | request, consumer, queue | take what is there; the answer says whether there was any |
| CREDIT | consumer, more | more credit, or less |
| AHEAD | consumer, number | take so many tasks beyond its credit, where no consumer has a free slot |
| BACK | request, consumer, tokens | deliveries that were not begun; it takes none ahead from now on |
| RESUME | request | the loop runs: after BEGUN it begins nothing before the answer, and gives back what comes until then |
| CLOSE | request, consumer | take no more |
| RECLAIM | request, consumer, id, token | a delivery that the client holds since an earlier session |
| SETTLE | | no other one |
| ACCEPT | request, consumer, token | `Delivery.accept` |
| DONE | request, consumer, token, outcome, payload, detail, successors | `Delivery.ack` |
| REJECT | request, consumer, token, requeue, delay, blame, exclude, reason, payload | `Delivery.reject` |
| PROGRESS | consumer, token, payload | `Delivery.progress` |
| SUBSCRIBE | request, subscription, patterns, last | `Engine.subscribe` |
| UNSUBSCRIBE | subscription | |
| WATCH | request, id | `Engine.watch`; the number of the request names the watcher |
| CALL | request, name, arguments | everything else of `Engine`, by its name |
| GREET | known | first over each link; False: the hub knows no client in its session, and one that said hello does so again |
| WELCOME | version, store, epoch, confirm, max_body | the answer to HELLO |
| REPLY | request, value | it is done, as surely as WELCOME said |
| FAILED | request, error | it is not; of request 0: the hub does not know the client, or no more |
| DELIVER | consumer, token, id, attempt, left, payload | a task |
| INPUTS | consumer, token, outcomes | for the task that comes next: ids, outcomes, payloads, details; or some |
| OUTCOME | watcher, outcome, payload, detail | |
| PROGRESSED | watcher, payload | |
| CANCELLED | consumer, token, reason | the work is not wanted |
| TOLD | consumer, token, payload | `Engine.tell` |
| STOPPED | consumer, reason | its queue is gone |
| EVENTS | subscriptions, subject, payload, kept | |
| NOTE | what, queue, id, detail | for observers |
| STALLED | name, question | by the link of ALIVE: the client takes nothing over, what has it begun? |

A payload is an encoded envelope, which the hub does not decode; an id has 16 bytes. A request is answered once; 0 wants no
answer. A publish always has a number, which no other one that waits for room has. An empty payload of INPUTS stands for one
that cannot be read, or for that of the task itself, for the reason in its details: the task is given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from redpoll import errors
from redpoll.bus.records import QueueSpec
from redpoll.error_root import _rebuild
from redpoll.errors import DecodeError, ProtocolError, RedpollError, UsageError
from redpoll.serializers import get

__all__ = [
    "ANSWERED",
    "CALLS",
    "FROM_CLIENTS",
    "FROM_HUB",
    "ID",
    "MAX_HELLO",
    "PATIENCE",
    "VERSION",
    "call_problem",
    "check",
    "check_call",
    "id_bytes",
    "id_number",
    "pack",
    "pack_error",
    "queue_of",
    "rebuild_error",
    "rebuild_spec",
    "texts",
    "unpack",
]

VERSION: Final = 1
PATIENCE: Final = 0.005
"""Seconds that acknowledgements of messages wait for records that are written with them: answers, or the next request.

Those of more than 64 KiB are written at once, and once 32 of them wait, which is half of the default window.
"""
ID: Final = 16
"""Bytes of the id of a task."""
MAX_HELLO: Final = 4_096
"""Maximum bytes of a message of a peer that has not said hello."""

HELLO, GOODBYE, PUBLISH, EVENT, WITHDRAW, CONSUME, TAKE, CREDIT, CLOSE, RECLAIM, SETTLE, ACCEPT, DONE, REJECT = range(
    14
)
PROGRESS, SUBSCRIBE, UNSUBSCRIBE, WATCH, CALL, ALIVE, AHEAD, BACK, RESUME, BEGUN, STEPS = range(14, 25)
WELCOME, REPLY, FAILED, DELIVER, OUTCOME, PROGRESSED, CANCELLED, TOLD, STOPPED, EVENTS, NOTE, GREET = range(32, 44)
STALLED, INPUTS = 44, 45

RecordT = TypeVar("RecordT", bound=Sequence[Any])
_Types = type | tuple[type, ...]
_PAYLOAD: Final = (bytes, type(None))
_NUMBER: Final = (int, float)
_SECONDS: Final = (int, float, type(None))

FROM_CLIENTS: Final[Mapping[int, tuple[_Types, ...]]] = {
    HELLO: (int, str, str),
    ALIVE: (str, str),
    BEGUN: (str, str, int, list),
    GOODBYE: (),
    PUBLISH: (int, str, bytes, bool, int, _NUMBER, _SECONDS, _SECONDS, (str, type(None)), bool, bool, _SECONDS),
    STEPS: (int, list, _SECONDS),
    EVENT: (int, str, bytes, bool, int, _SECONDS),
    WITHDRAW: (int,),
    CONSUME: (int, int, str, int, bool, bool, bool),
    TAKE: (int, int, str),
    CREDIT: (int, int),
    AHEAD: (int, int),
    BACK: (int, int, list),
    RESUME: (int,),
    CLOSE: (int, int),
    RECLAIM: (int, int, bytes, int),
    SETTLE: (),
    ACCEPT: (int, int, int),
    DONE: (int, int, int, int, _PAYLOAD, str, list),
    REJECT: (int, int, int, bool, _NUMBER, bool, bool, str, _PAYLOAD),
    PROGRESS: (int, int, bytes),
    SUBSCRIBE: (int, int, list, bool),
    UNSUBSCRIBE: (int,),
    WATCH: (int, bytes),
    CALL: (int, str, list),
}
"""The types of what follows a kind, in records of clients."""

ANSWERED: Final = frozenset(
    {PUBLISH, STEPS, EVENT, CONSUME, TAKE, CLOSE, RECLAIM, ACCEPT, BACK, RESUME, DONE, REJECT, SUBSCRIBE, WATCH, CALL}
)
"""Kinds whose records begin with the number of a request, and are answered."""

CALLS: Final[Mapping[str, tuple[_Types, ...]]] = {
    "declare": (dict, bool),
    "delete": (str, bool),
    "queues": (),
    "inspect": (str,),
    "cancel": (bytes,),
    "claim": (int, bytes),
    "tell": (bytes, bytes),
    "lookup": (bytes,),
    "browse": (str, object, object),
    "purge": (str, object),
    "move": (str, str, object),
    "pause": (str, bool),
    "redrive": (str, (list, type(None))),
    "schedule": (str, list, object, object, object, object),
    "unschedule": (str,),
    "schedules": (),
    "observe": (bool,),
    "check": (),
    "backup": (str,),
}
"""The types of the arguments of each call; the broker checks those of any type."""

FROM_HUB: Final[Mapping[int, tuple[_Types, ...]]] = {
    WELCOME: (int, str, int, str, int),
    REPLY: (int, object),
    FAILED: (int, list),
    DELIVER: (int, int, bytes, int, _SECONDS, bytes),
    OUTCOME: (int, int, _PAYLOAD, str),
    PROGRESSED: (int, bytes),
    CANCELLED: (int, int, str),
    TOLD: (int, int, bytes),
    STOPPED: (int, str),
    EVENTS: (list, str, bytes, bool),
    NOTE: (str, str, bytes, str),
    GREET: (bool,),
    STALLED: (str, int),
    INPUTS: (int, int, list),
}
"""The same, in records of a hub."""

#: The place of the payload in records that have one, and of an id in some others: the last field of bytes.
_PAYLOAD_AT: Final = {
    kind: place
    for kind, shape in (*FROM_CLIENTS.items(), *FROM_HUB.items())
    for place, types in enumerate(shape, 1)
    if types in {bytes, _PAYLOAD}
}
#: Bytes of payloads after which a message is full.
_FULL: Final = 1024 * 1024
_RECORDS: Final = 1024

_SETTINGS: Final = frozenset(QueueSpec.__dataclass_fields__)

#: The types of records that were found right, with their kinds: checking them once more takes longer. Values have few types.
_known: Final[dict[tuple[type, ...], set[int]]] = {}

_msgpack = get("msgpack")
_PLAIN: Final = (type(None), bool, int, float, str, bytes)


def pack(records: Iterable[RecordT]) -> Iterator[tuple[bytes, list[RecordT]]]:
    """Encode records as the bodies of as few messages as make sense; yield each with its records."""
    part: list[RecordT] = []
    size = 0
    for record in records:
        part.append(record)
        place = _PAYLOAD_AT.get(record[0])
        if place is not None:
            size += len(record[place] or b"")
        if size >= _FULL or len(part) >= _RECORDS:
            yield bytes(_msgpack.encode(part)), part
            part = []
            size = 0
    if part:
        yield bytes(_msgpack.encode(part)), part


def check(values: Sequence[Any]) -> None:
    """Check values that a program gave: in a record that is packed with others they would be the loss of all.

    Raises:
        EncodeError: MessagePack does not carry them.
    """
    _msgpack.encode(values)


def unpack(body: Any, shapes: Mapping[int, tuple[_Types, ...]]) -> list[list[Any]]:
    """Decode the body of a message.

    Raises:
        ProtocolError: It is none, or one of its records is none.
    """
    try:
        records = _msgpack.decode(body)
    except DecodeError as error:
        raise ProtocolError(f"the records of a bus cannot be read: {error.problem}") from error
    if type(records) is not list:
        raise ProtocolError("expected a list of records")
    for record in records:
        types = tuple(map(type, record)) if type(record) is list else ()
        kinds = _known.get(types)
        if kinds is None or record[0] not in kinds or record[0] not in shapes:
            _check_record(record, shapes)
            _known.setdefault(types, set()).add(record[0])
    return records


def _check_record(record: Any, shapes: Mapping[int, tuple[_Types, ...]]) -> None:
    shape = shapes.get(record[0]) if type(record) is list and record and type(record[0]) is int else None
    if shape is None or len(record) != len(shape) + 1:
        raise ProtocolError("expected a record that is known and complete")
    for value, types in zip(record[1:], shape, strict=True):
        if not isinstance(value, types):
            raise ProtocolError(f"a record of kind {record[0]} has a {type(value).__name__} where none belongs")


def call_problem(name: str, arguments: Sequence[Any]) -> str | None:
    """Return what is wrong with the arguments of a call: their number, or a type; None if nothing is.

    Raises:
        UsageError: There is no call of that name.
    """
    shape = CALLS.get(name)
    if shape is None:
        raise UsageError(f"this hub has no call {name!r}", "is it older than this client?")
    if len(arguments) != len(shape):
        return f"call {name!r} has {len(arguments)} arguments, {len(shape)} expected"
    for number, (value, types) in enumerate(zip(arguments, shape, strict=True), 1):
        if not isinstance(value, types):
            return f"argument {number} of call {name!r} has the wrong type {type(value).__name__}: {value!r:.100}"
    return None


def check_call(name: str, arguments: list[Any]) -> None:
    """Check the arguments of a call of a client.

    Raises:
        UsageError: There is no call of that name.
        ProtocolError: Something is wrong with them.
    """
    problem = call_problem(name, arguments)
    if problem is not None:
        raise ProtocolError(problem)


def texts(values: list[Any]) -> tuple[str, ...]:
    """Return values that must be texts, one or more.

    Raises:
        ProtocolError: There is none, or one of another type.
    """
    if not values or not all(isinstance(each, str) for each in values):
        raise ProtocolError(f"expected a list of texts, not {values!r:.100}")
    return tuple(values)


def queue_of(publication: Any) -> str:
    """Return the queue of a task to be put into it, which is packed.

    Raises:
        ProtocolError: It has other parts than a queue, an envelope and options.
    """
    match publication:
        case [str() as queue, bytes(), dict()]:
            return queue
    raise ProtocolError("expected a task: its queue, its envelope and its options")


def pack_error(error: RedpollError) -> list[Any]:
    """Make plain values of an error: its class, its fields, its attributes."""
    fields = [each if type(each) in _PLAIN else str(each) for each in error.args]
    attributes = {key: each for key, each in error.__dict__.items() if type(each) in _PLAIN}
    return [type(error).__name__, fields, attributes]


def rebuild_error(values: list[Any]) -> RedpollError:
    """Make the error again; one that is not known here is a `ProtocolError` with its text."""
    match values:
        case [str() as name, list() as fields, dict() as attributes]:
            kind = getattr(errors, name, None)
            if isinstance(kind, type) and issubclass(kind, RedpollError):
                error = _rebuild(kind, tuple(fields))
                error.__dict__.update(attributes)
                return error
    return ProtocolError(f"the hub answered with an error that is not known here: {values!r:.200}")


def rebuild_spec(values: dict[str, Any]) -> QueueSpec:
    """Make the settings of a queue again of the values of their fields.

    Raises:
        ProtocolError: There are others than these.
        ConfigError: One of them cannot be.
    """
    if "name" not in values or not values.keys() <= _SETTINGS:
        raise ProtocolError(f"expected the settings of a queue, not {sorted(values, key=str)!r:.200}")
    topics = values.get("topics", [])
    if not isinstance(topics, list):
        raise ProtocolError(f"expected topics as a list, not as {type(topics).__name__}")
    return QueueSpec(**{**values, "topics": tuple(topics)})


def id_bytes(number: int) -> bytes:
    """Return the number of a task as it is sent."""
    return number.to_bytes(ID)


def id_number(task: bytes) -> int:
    """Return the number of a task; 0 of none.

    Raises:
        ProtocolError: They are too many bytes.
    """
    if len(task) > ID:
        raise ProtocolError(f"an id of {len(task)} bytes, above {ID}")
    return int.from_bytes(task)
