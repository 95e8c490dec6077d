"""The error tree: who inherits from whom, what the texts say, and that errors travel."""

from __future__ import annotations

import copy
import pickle

import pytest

from redpoll import errors
from redpoll.address import Address
from redpoll.errors import (
    REFUSALS,
    Abandoned,
    BadPayload,
    BatchError,
    BusError,
    Busy,
    CallTimeout,
    Cancelled,
    Closed,
    ConfigError,
    ConfirmTimeout,
    DeadLettered,
    DecodeError,
    DialFailed,
    DirectoryUnavailable,
    EncodeError,
    Expired,
    Fenced,
    HandlerFailed,
    LinkError,
    MessageTooLarge,
    NameTaken,
    NoAnswer,
    NoHandler,
    NoRoute,
    NotAuthorized,
    NotConfirmed,
    NotSent,
    OtherProtocol,
    PayloadTooLarge,
    PeerLost,
    ProtocolError,
    QueueEmpty,
    QueueFull,
    RedpollError,
    Refused,
    RemoteError,
    ResultExpired,
    ResultTooLarge,
    ScopeError,
    SendError,
    ShuttingDown,
    SpecConflict,
    StaleHub,
    StoreError,
    TaskCancelled,
    TaskError,
    TaskExpired,
    TaskRejected,
    TimeLimit,
    TLSError,
    Undecodable,
    UnknownName,
    UnknownTask,
    Unsupported,
    UsageError,
    WiringError,
    Withdrawn,
)

HERE = Address.parse("127.0.0.1:2998")

# One of each class and its whole text.
TEXTS: list[tuple[RedpollError, str]] = [
    (RedpollError("something", 3), "something, 3"),
    (RedpollError(), "RedpollError"),
    (UsageError("that is wrong"), "that is wrong"),
    (UsageError("that is wrong", "do this"), "that is wrong (do this)"),
    (ConfigError("timeout", -1, "must be above 0"), "timeout=-1: must be above 0"),
    (ConfigError("slot", 3, "is unknown", "did you mean 'slots'?"), "slot=3: is unknown (did you mean 'slots'?)"),
    (
        MessageTooLarge("header", 70_000, 65_535),
        "header of 70000 bytes is over the limit of 65535 (carry it in the data)",
    ),
    (
        MessageTooLarge("message", 11, 10),
        "message of 11 bytes is over the limit of 10 (split it, or raise max_message_size on both nodes)",
    ),
    (MessageTooLarge("metadata", 11, 10), "metadata of 11 bytes is over the limit of 10"),
    (Closed("node"), "the node is not running"),
    (DialFailed(HERE, "connection refused"), "cannot connect to 127.0.0.1:2998: connection refused"),
    (DialFailed(None, "no route"), "cannot connect: no route"),
    (PeerLost(HERE, "closed by the peer"), "lost the peer 127.0.0.1:2998: closed by the peer"),
    (PeerLost(None, "closed by the peer"), "lost the peer: closed by the peer"),
    (
        Fenced(HERE),
        (
            "lost the peer 127.0.0.1:2998: another run of this node took over there"
            " (give each running node its own identity)"
        ),
    ),
    (ProtocolError("type 0x40", "::1"), "protocol error with ::1: type 0x40"),
    (ProtocolError("type 0x40"), "protocol error: type 0x40"),
    (TLSError("no certificate", HERE), "TLS failed with 127.0.0.1:2998: no certificate"),
    (TLSError("no certificate"), "TLS failed: no certificate"),
    (
        OtherProtocol("HTTP is spoken there", HERE),
        "protocol error with 127.0.0.1:2998: HTTP is spoken there (is the address right?)",
    ),
    (NotAuthorized("not today", HERE, "ask"), "not authorized with 127.0.0.1:2998: not today (ask)"),
    (NotAuthorized("not today"), "not authorized: not today"),
    (NotSent("m", "the node stopped", HERE), "message to 127.0.0.1:2998 was not sent: the node stopped"),
    (NotSent("m", "the node stopped"), "message was not sent: the node stopped"),
    (
        QueueFull("m", 100, "messages", HERE),
        (
            "message to 127.0.0.1:2998 was not sent: the send queue is full: the limit is 100 messages"
            " (await each send, await node.ready(address), or use send_many)"
        ),
    ),
    (Expired("m", 0.25, "queued", HERE), "message to 127.0.0.1:2998 was not sent: still queued after 0.25 s"),
    (
        Expired("m", 2.0, "waiting in the peer's inbox", HERE),
        (
            "message to 127.0.0.1:2998 was not sent: still waiting in the peer's inbox after 2 s"
            " (the remote handler is slower than the timeout or blocks its event loop, or no"
            " consumer takes messages there)"
        ),
    ),
    (
        NotConfirmed("m", "the link was lost", HERE),
        (
            "message to 127.0.0.1:2998 was sent, but not confirmed: the link was lost"
            " (it may have been handled; send with retry=N to have it handled once by a redpoll peer)"
        ),
    ),
    (
        ConfirmTimeout("m", 5.0, HERE),
        (
            "message to 127.0.0.1:2998 was sent, but not confirmed: no acknowledgement within 5 s"
            " (it may have been handled or still run: the remote handler is slow, or blocks its event loop, which its"
            " node logs)"
        ),
    ),
    (Refused("m", "not today", HERE), "message to 127.0.0.1:2998 was refused: not today"),
    (Refused("m", ""), "message was refused"),
    (
        HandlerFailed("m", "ValueError: x", HERE),
        "message to 127.0.0.1:2998 was refused: the handler failed: ValueError: x",
    ),
    (
        Undecodable("m", "", HERE),
        "message to 127.0.0.1:2998 was refused: the peer cannot decode the data (both nodes need the same serializer)",
    ),
    (Abandoned("m", "", HERE), "message to 127.0.0.1:2998 was refused: abandoned by its consumer"),
    (Cancelled("m", "", HERE), "message to 127.0.0.1:2998 was refused: the handler was cancelled"),
    (
        NoHandler("m", "", HERE),
        (
            "message to 127.0.0.1:2998 was refused: unclaimed"
            " (give that node a handler, or pull from it within its unclaimed_timeout)"
        ),
    ),
    (Busy("m", "", HERE), "message to 127.0.0.1:2998 was refused: the peer is busy (send it again later)"),
    (ShuttingDown("m", "", HERE), "message to 127.0.0.1:2998 was refused: the peer is shutting down"),
    (Withdrawn("m", "", HERE), "message to 127.0.0.1:2998 was refused: withdrawn before it was begun"),
    (
        BatchError(7, 6, ShuttingDown("m", "", HERE)),
        "item 7 failed, 6 succeeded: message to 127.0.0.1:2998 was refused: the peer is shutting down",
    ),
    (CallTimeout("a: add", 2.0), "no answer from a: add within 2 s"),
    (CallTimeout("a: add", None, "it is late"), "no answer from a: add in time: it is late"),
    (NoAnswer("m", 2.0, HERE), "request to 127.0.0.1:2998 was done, but no answer arrived within 2 s"),
    (EncodeError("raw", "it carries bytes", "encode it"), "raw cannot encode: it carries bytes (encode it)"),
    (DecodeError("json", "no value"), "json cannot decode: no value"),
    (
        QueueFull("m", 100, "tasks", queue="night"),
        (
            "message was not sent: the queue 'night' is full: the limit is 100 tasks"
            " (start more workers, wait with timeout=, or raise the limit of the queue)"
        ),
    ),
    (BusError("there is no such part"), "there is no such part"),
    (RemoteError("ValueError", "bad input", "Traceback ..."), "remote ValueError: bad input"),
    (NoRoute("night"), "no route to 'night'"),
    (NoRoute("night", "declare it"), "no route to 'night' (declare it)"),
    (QueueEmpty("night", 5.0), "no task in queue 'night' after 5 s"),
    (QueueEmpty("night", 0), "no task in queue 'night'"),
    (SpecConflict("night", "priorities", 1, 10), "queue 'night' has priorities=1, not 10"),
    (Unsupported("amqp", "cancelling a task", "use a hub"), "amqp:// does not support cancelling a task (use a hub)"),
    (
        BadPayload("numpy", "there is no such serializer", "add it"),
        "payload of type 'numpy': there is no such serializer (add it)",
    ),
    (
        PayloadTooLarge(20, 10),
        "body of 20 bytes is over the limit of 10 (pass a reference to the data, or raise max_body)",
    ),
    (
        ResultTooLarge(20, 10),
        "result of 20 bytes is over the limit of 10 (pass a reference to the data, or raise max_body)",
    ),
    (
        StaleHub(HERE, 3, 4),
        "the hub at 127.0.0.1:2998 has epoch 3, but epoch 4 was seen before (stop the older hub)",
    ),
    (StoreError("/srv/hub", "is damaged"), "/srv/hub: is damaged"),
    (TaskError("s-17-ab", "no worker"), "task s-17-ab has no result: no worker"),
    (TaskRejected("17", "no disk"), "task 17 was rejected: no disk"),
    (TaskCancelled("17"), "task 17 was cancelled"),
    (TaskExpired("17", "not begun in 5 s"), "task 17 expired: not begun in 5 s"),
    (TimeLimit("17", "60 s"), "task 17 exceeded its time limit: 60 s"),
    (DeadLettered("17", "3 workers lost"), "task 17 is a dead letter: 3 workers lost"),
    (UnknownTask("17"), "task 17 is unknown"),
    (ResultExpired("17"), "task 17 has no stored outcome"),
    (WiringError("the exchange is gone"), "the exchange is gone"),
    (UnknownName("queue", "JOBS"), "there is no queue 'JOBS'"),
    (UnknownName("exchange", "NEWS", 2.5, "ask"), "there is no exchange 'NEWS' after 2.5 s (ask)"),
    (NameTaken("queue", "JOBS", "another owner has it"), "the queue name 'JOBS' is taken: another owner has it"),
    (ScopeError("a GLOBAL name needs a directory", "give one"), "a GLOBAL name needs a directory (give one)"),
    (
        DirectoryUnavailable(HERE, "no answer in 5 s"),
        "the directory 127.0.0.1:2998 does not answer: no answer in 5 s (start one with: redpoll directory)",
    ),
]

TREE = {
    UsageError: (RedpollError, ValueError),
    ConfigError: (UsageError,),
    MessageTooLarge: (UsageError,),
    Closed: (RedpollError,),
    LinkError: (RedpollError, ConnectionError),
    DialFailed: (LinkError,),
    OtherProtocol: (ProtocolError,),
    PeerLost: (LinkError,),
    Fenced: (PeerLost,),
    ProtocolError: (LinkError,),
    TLSError: (LinkError,),
    NotAuthorized: (LinkError,),
    SendError: (RedpollError,),
    NotSent: (SendError,),
    QueueFull: (NotSent,),
    Expired: (NotSent, TimeoutError),
    NotConfirmed: (SendError,),
    ConfirmTimeout: (NotConfirmed, TimeoutError),
    Refused: (SendError,),
    HandlerFailed: (Refused,),
    Undecodable: (Refused,),
    Abandoned: (Refused,),
    Cancelled: (Refused,),
    NoHandler: (Refused,),
    Busy: (Refused,),
    ShuttingDown: (Refused,),
    Withdrawn: (Refused,),
    BatchError: (SendError,),
    NoAnswer: (RedpollError, TimeoutError),
    CallTimeout: (NoAnswer, BusError),
    EncodeError: (RedpollError,),
    DecodeError: (RedpollError,),
    BusError: (RedpollError,),
    RemoteError: (BusError,),
    NoRoute: (BusError,),
    QueueEmpty: (BusError,),
    SpecConflict: (BusError,),
    Unsupported: (BusError,),
    BadPayload: (BusError,),
    PayloadTooLarge: (BusError, ValueError),
    ResultTooLarge: (PayloadTooLarge,),
    StaleHub: (BusError,),
    StoreError: (BusError,),
    TaskError: (BusError,),
    TaskRejected: (TaskError,),
    TaskCancelled: (TaskError,),
    TaskExpired: (TaskError, TimeoutError),
    TimeLimit: (TaskError, TimeoutError),
    DeadLettered: (TaskError,),
    UnknownTask: (TaskError, LookupError),
    ResultExpired: (TaskError, LookupError),
    WiringError: (RedpollError,),
    UnknownName: (WiringError, LookupError),
    NameTaken: (WiringError,),
    ScopeError: (WiringError, UsageError),
    DirectoryUnavailable: (WiringError, LinkError),
}


def _classes() -> set[type[RedpollError]]:
    found = (getattr(errors, name) for name in errors.__all__)
    return {each for each in found if isinstance(each, type) and issubclass(each, RedpollError)}


def _fields(error: BaseException) -> dict[str, object]:
    # An exception inside an exception is equal to none but itself: compare what it shows.
    return {
        name: (str(value), _fields(value)) if isinstance(value, BaseException) else value
        for name, value in vars(error).items()
    }


@pytest.mark.parametrize(("error", "text"), TEXTS, ids=lambda each: type(each).__name__)
def test_the_text_is_built_from_the_fields(error: RedpollError, text: str) -> None:
    """Each error says what happened, where, and the hint in brackets."""
    assert str(error) == text


def test_each_class_has_its_place_in_the_tree() -> None:
    """The classes inherit exactly as api.md has them, and no class is missing from the table."""
    assert {kind: kind.__bases__ for kind in _classes() - {RedpollError}} == TREE


def test_each_class_has_a_tested_text() -> None:
    """No error class that can be raised is without a line in the table of texts."""
    assert {type(error) for error, _ in TEXTS} == _classes() - {LinkError, SendError}


def test_the_docstring_draws_the_tree() -> None:
    """The drawing at the top of the module names every class, indented under its base."""
    drawn: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        words = line.split()
        if not words or words[0] not in errors.__all__:
            continue
        depth = len(line) - len(line.lstrip())
        above = [(indent, name) for indent, name in above if indent < depth]
        if above:
            drawn[words[0]] = above[-1][1]
        above.append((depth, words[0]))
    assert drawn == {kind.__name__: bases[0].__name__ for kind, bases in TREE.items()}


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("error", [error for error, _ in TEXTS], ids=lambda each: type(each).__name__)
def test_errors_can_be_pickled_and_copied(error: RedpollError, copier: object) -> None:
    """A copy has the class, the fields, the arguments and the text of the original."""
    assert callable(copier)
    twin = copier(error)
    assert type(twin) is type(error)
    assert _fields(twin) == _fields(error)
    assert str(twin) == str(error)
    assert repr(twin) == repr(error)


def test_a_note_travels_along() -> None:
    """What was added to an error with add_note is in its copy."""
    error = Closed("node")
    error.add_note("while testing")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while testing"]


def test_the_arguments_are_the_fields() -> None:
    """The repr shows the fields in the order of the constructor, also where OSError would drop one."""
    assert repr(Expired("m", 2.0, "queued", "a:1")) == "Expired('m', 2.0, 'queued', 'a:1')"
    assert repr(ConfigError("port", 70_000, "is too large")) == "ConfigError('port', 70000, 'is too large')"
    assert repr(QueueFull("m", 5, "bytes")) == "QueueFull('m', 5, 'bytes', None)"
    assert DialFailed("a:1", "refused").errno is None


@pytest.mark.parametrize("kind", [NotSent, NotConfirmed, Refused])
def test_delivery_errors_keep_the_message(kind: type[NotSent | NotConfirmed | Refused]) -> None:
    """The message that was not delivered is at hand, the same object, with its address."""
    message = object()
    error = kind(message, "why", HERE)
    assert error.message is message
    assert error.address == HERE


def test_a_time_that_is_not_known_is_not_shown() -> None:
    """A deadline that came with an incoming message has no timeout to name."""
    assert str(Expired("m", None, "queued")) == "message was not sent: still queued when its deadline passed"
    assert str(NoAnswer("m", None)) == "request was done, but no answer arrived in time"
    assert "not confirmed: no acknowledgement in time" in str(ConfirmTimeout("m", None))


def test_time_errors_keep_the_message() -> None:
    """The errors of a deadline keep the message and the address too."""
    message = object()
    for error in (
        Expired(message, 1.0, "queued", HERE),
        ConfirmTimeout(message, 1.0, HERE),
        NoAnswer(message, 1.0, HERE),
    ):
        assert error.message is message
        assert error.address == HERE


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (NotSent("m", ""), False),
        (QueueFull("m", 1, "bytes"), False),
        (Expired("m", 1.0, "queued"), False),
        (NotConfirmed("m", ""), True),
        (ConfirmTimeout("m", 1.0), True),
        (Refused("m", ""), True),
        (HandlerFailed("m", ""), True),
        (Undecodable("m", ""), True),
        (Abandoned("m", ""), True),
        (Cancelled("m", ""), True),
        (NoHandler("m", ""), False),
        (Busy("m", ""), False),
        (ShuttingDown("m", ""), False),
        (Withdrawn("m", ""), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_sent_says_whether_it_may_have_been_handled(error: SendError, sent: bool) -> None:
    """What is False in .sent was not begun and is safe to send again."""
    assert error.sent is sent


def test_refusal_codes_are_the_ones_on_the_wire() -> None:
    """Each code has its class, each class its code, and nobody can change the table."""
    assert {code: kind.__name__ for code, kind in REFUSALS.items()} == {
        0: "Refused",
        1: "HandlerFailed",
        2: "Undecodable",
        3: "Abandoned",
        4: "Cancelled",
        5: "NoHandler",
        6: "Busy",
        7: "ShuttingDown",
        8: "Withdrawn",
    }
    assert all(kind.code == code for code, kind in REFUSALS.items())
    with pytest.raises(TypeError):
        REFUSALS[9] = Busy  # type: ignore[index]


def test_a_peer_cannot_write_control_characters_into_a_log() -> None:
    """Line breaks, terminal codes and lone surrogates of a refusal are escaped; the field keeps them."""
    error = HandlerFailed("m", "one\ntwo\x1b[31m\ud800 \u2028é")
    assert str(error) == r"message was refused: the handler failed: one\ntwo\x1b[31m\ud800 \u2028é"
    assert error.text == "one\ntwo\x1b[31m\ud800 \u2028é"


def test_a_batch_error_mirrors_its_error() -> None:
    """Message, sent and address are those of the first failure; what is no SendError was not sent."""
    first = NotConfirmed("m", "lost", HERE)
    error = BatchError(3, 5, first)
    assert (error.index, error.completed, error.error) == (3, 5, first)
    assert (error.message, error.sent, error.address) == ("m", True, HERE)
    other = BatchError(0, 0, EncodeError("raw", "no bytes"))
    assert (other.message, other.sent, other.address) == (None, False, None)


def test_a_config_error_shortens_a_long_value() -> None:
    """The text stays readable whatever the value; the field keeps all of it."""
    error = ConfigError("identity", bytes(10_000), "is too long")
    assert len(str(error)) < 100
    assert error.value == bytes(10_000)
    assert str(ConfigError("port", 10**5_000, "is too large")) == "port=<int>: is too large"


def test_fields_are_kept() -> None:
    """The fields that a program may look at have the names that the docstrings give."""
    error = MessageTooLarge("header", 7, 3)
    assert (error.what, error.size, error.limit) == ("header", 7, 3)
    full = QueueFull("m", 5, "bytes", "a:1")
    assert (full.limit, full.unit, full.reason) == (5, "bytes", "the send queue is full: the limit is 5 bytes")
    late = Expired("m", 2.5, "connecting")
    assert (late.timeout, late.stage) == (2.5, "connecting")
    assert ConfirmTimeout("m", 2.5).timeout == 2.5
    assert NoAnswer("m", 2.5).timeout == 2.5
    remote = RemoteError("KeyError", "'x'", "Traceback")
    assert (remote.kind, remote.text, remote.traceback) == ("KeyError", "'x'", "Traceback")
    assert (TaskRejected("1", "r").task, TaskRejected("1", "r").reason) == ("1", "r")
    assert (EncodeError("raw", "p").serializer, DecodeError("raw", "p").problem) == ("raw", "p")
    assert (PeerLost(None, "r").reason, ProtocolError("d").detail, TLSError("d").detail) == ("r", "d", "d")


def test_an_error_as_a_reason() -> None:
    """As the reason of another error about the same address an error says neither that nor its hint again."""
    error = TLSError("no certificate", HERE, "give tls=")
    assert error._reason(HERE) == "TLS failed: no certificate"
    assert error._reason(None) == error._reason("[::1]:1") == "TLS failed with 127.0.0.1:2998: no certificate"
    assert (error.address, error.hint) == (HERE, "give tls=")
    assert ConfigError("port", 7, "is no port", "take another")._reason(HERE) == "port=7: is no port"
