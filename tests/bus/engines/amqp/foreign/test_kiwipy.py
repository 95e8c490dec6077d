"""kiwiPy's messages: what kiwiPy 0.9 sent was recorded, and what we write is what kiwiPy reads."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import yaml

from redpoll.bus.engines.amqp.foreign.dialect import PAYLOADS, Request
from redpoll.bus.engines.amqp.foreign.kiwipy import Kiwipy
from redpoll.bus.engines.amqp.wire import NO_PROPERTIES, Properties
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.failures import Failure
from redpoll.errors import BadPayload, ConfigError, EncodeError, Unsupported

# As kiwiPy 0.9 wrote them.
TASK = (
    b"!!python/tuple\n- f: 1.5\n  n: null\n  pk: 7\n  raw: !!binary |\n    AAE=\n"
    b"  tags: !!python/tuple\n  - a\n  - b\n- false\n"
)
SENT = Properties(delivery_mode=2, correlation_id="c0ffee", reply_to="kiwipy.tasks-reply-1")
BROADCAST = b"body:\n  a:\n  - 1\n  - 2\ncorrelation_id: null\nsender: 7\nsubject: state_changed.42.finished\n"


@pytest.fixture
def kiwi() -> Kiwipy:
    """KiwiPy's messages, with its defaults."""
    return Kiwipy()


def request(value: Any, meta: dict[str, Any] | None = None, **fields: Any) -> Request:
    """A request that waits for a reply, unless told otherwise."""
    return Request(PAYLOADS.pack(value, meta, fields.pop("headers", None)), "id-1", "replies", **fields)


def test_names(kiwi: Kiwipy) -> None:
    """Tasks have kiwiPy's durable queue on its exchange; recipients have an exclusive one each; arguments are kiwiPy's."""
    tasks = kiwi.queue("tasks")
    assert (tasks.name, tasks.durable, tasks.arguments) == ("kiwipy.tasks", True, {"x-message-ttl": 604_800_000})
    assert [(exchange.name, exchange.kind, exchange.durable, key) for exchange, key in tasks.bindings] == [
        ("kiwipy.tasks", "topic", False, "kiwipy.tasks")
    ]
    assert kiwi.queue("bench-queue").bindings[0][1] == "bench-queue"
    process = kiwi.queue("rpc:42")
    assert (process.name, process.exclusive, process.bindings[0][0].name) == ("", True, "kiwipy.messages")
    assert process.bindings[0][1] == "[rpc].42"
    assert process.arguments == {"x-message-ttl": 66_000, "x-expires": 60_000}
    events = kiwi.events("broadcast.#")
    assert events is not None
    assert (events.exclusive, events.bindings[0][1]) == (True, "[broadcast]")
    assert kiwi.events("rpc.42") is None
    # kiwiPy replies to tasks by the one exchange, to calls by the other.
    assert {(exchange.name, key) for exchange, key in kiwi.replies("1").bindings} == {
        ("kiwipy.messages", kiwi.replies("1").name),
        ("kiwipy.tasks", kiwi.replies("1").name),
    }


def test_options() -> None:
    """Exchanges, the queue of tasks, encoder and decoder are options, by kiwiPy's names."""
    kiwi = Kiwipy(
        message_exchange="m",
        task_exchange="t",
        task_queue="q",
        encoder=lambda value: json.dumps(value).encode(),
        decoder=json.loads,
    )
    sent = kiwi.write("tasks", request("x"))
    assert (sent.exchange.name, sent.key, sent.body) == ("t", "q", b'["x", false]')
    assert kiwi.write("rpc:a", request("x")).exchange.name == "m"
    assert PAYLOADS.unpack(kiwi.read("tasks", b'["x", true]', NO_PROPERTIES).envelope) == "x"
    with pytest.raises(ConfigError, match="encoder"):
        Kiwipy(encoder="yaml")  # type: ignore[arg-type]


def test_without_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyYAML the default encoding is refused, with the remedy; other encodings do not need it."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match="redpoll\\[kiwipy\\]"):
        Kiwipy()
    Kiwipy(encoder=bytes, decoder=bytes)


def test_task_is_read(kiwi: Kiwipy) -> None:
    """A task of kiwiPy is read: the tuple around it, its reply queue, its id, and that it wants no reply."""
    found = kiwi.read("tasks", TASK, SENT)
    value = PAYLOADS.unpack(found.envelope)
    assert value == {"f": 1.5, "n": None, "pk": 7, "raw": b"\x00\x01", "tags": ["a", "b"]}
    assert (found.id, found.reply_to, found.wanted) == ("c0ffee", "kiwipy.tasks-reply-1", True)
    assert not kiwi.read("tasks", TASK.replace(b"false", b"true"), SENT).wanted


@pytest.mark.parametrize("wanted", [True, False])
def test_task_is_written(kiwi: Kiwipy, wanted: bool) -> None:
    """A task is a persistent pair of the task and whether no reply is wanted, with an id and a reply queue."""
    sent = kiwi.write("tasks", request({"pk": 7}, wanted=wanted, ttl=1.5))
    assert yaml.load(sent.body, yaml.FullLoader) == [{"pk": 7}, not wanted]  # as kiwiPy reads it
    properties = sent.properties
    assert (properties.delivery_mode, properties.correlation_id, properties.reply_to) == (2, "id-1", "replies")
    assert properties.expiration == "1500"


def test_context_travels(kiwi: Kiwipy) -> None:
    """Headers and the number of a try travel in a header, which kiwiPy passes over."""
    sent = kiwi.write("tasks", request(1, {"tries": 2}, headers={"user": "ada"}))
    found = kiwi.read("tasks", sent.body, sent.properties)
    assert (found.envelope.meta, found.envelope.headers) == ({"tries": 2}, {"user": "ada"})
    assert yaml.safe_load(sent.body) == [1, False]


def test_call(kiwi: Kiwipy) -> None:
    """A call is a message to a recipient; kiwiPy has no methods, exchanges, servers or messages to all."""
    sent = kiwi.write("rpc:42", request({"intent": "pause"}))
    assert (sent.exchange.name, sent.key, sent.body) == ("kiwipy.messages", "[rpc].42", b"intent: pause\n")
    found = kiwi.read("rpc:42", b"intent: pause\nmessage: null\n", Properties(reply_to="r", correlation_id="c"))
    assert PAYLOADS.unpack(found.envelope) == {"intent": "pause", "message": None}
    for target, meta in (("rpc:42", {"m": "pause"}), ("rpc:/scope/42", None), ("rpc:42.@host", None)):
        with pytest.raises(Unsupported, match="speak='kiwipy'"):
            kiwi.write(target, request(1, meta))
    for target in ("notifications:a.info", "broadcast:kept"):
        with pytest.raises(Unsupported, match="speak='kiwipy'"):
            kiwi.queue(target)
    with pytest.raises(Unsupported, match="speak='kiwipy'"):
        kiwi.write("rpc.42", request(1, subject="rpc.42"))


def test_broadcast(kiwi: Kiwipy) -> None:
    """A broadcast has body, sender, subject and correlation id in its body, in both directions."""
    found = kiwi.read("broadcast.#", BROADCAST, NO_PROPERTIES)
    assert found.subject == "broadcast.state_changed.42.finished"
    assert found.envelope.meta == {"sender": 7, "subject": "state_changed.42.finished"}
    assert PAYLOADS.unpack(found.envelope) == {"a": [1, 2]}
    sent = kiwi.write(found.subject, found)
    assert (sent.exchange.name, sent.key) == ("kiwipy.messages", "[broadcast]")
    assert yaml.safe_load(sent.body) == yaml.safe_load(BROADCAST)
    assert kiwi.read("broadcast.#", b"{body: 1, subject: null}", NO_PROPERTIES).subject == "broadcast"


REPLIES = [
    (b"result: !!python/tuple\n- 1\n- 2\n", Outcome(OutcomeKind.RESULT, PAYLOADS.pack([1, 2]))),
    (b"exception: 'no'\n", Outcome(OutcomeKind.ERROR, Failure("", "RemoteException", "no").pack())),
    (b"cancelled: null\n", Outcome(OutcomeKind.CANCELLED, None, "")),
    (b"pending: null\n", Envelope("", b"", {"nested": 1})),
]


@pytest.mark.parametrize(("body", "expected"), REPLIES)
def test_reply_is_read(kiwi: Kiwipy, body: bytes, expected: Outcome | Envelope) -> None:
    """Each reply of kiwiPy is read: a result, an exception, a cancellation, a pending future."""
    assert kiwi.read_reply(body, Properties(correlation_id="id-1")) == ("id-1", expected)


@pytest.mark.parametrize(("body", "reply"), REPLIES)
def test_reply_is_written(kiwi: Kiwipy, body: bytes, reply: Outcome | Envelope) -> None:
    """Each reply is written as kiwiPy reads it, to the reply queue, by the exchange of the request."""
    for target, exchange in (("tasks", "kiwipy.tasks"), ("rpc:42", "kiwipy.messages")):
        sent = kiwi.write_reply(target, Request(Envelope("raw", b""), "c", "r"), reply)
        assert sent is not None
        assert (sent.exchange.name, sent.key, sent.properties.correlation_id) == (exchange, "r", "c")
        expected = yaml.load(body, yaml.FullLoader)
        found = yaml.safe_load(sent.body)
        assert found.keys() == expected.keys()
        assert found.get("result") == (list(expected["result"]) if "result" in expected else None)
        assert found.get("exception") == expected.get("exception")


def test_other_outcomes_are_exceptions(kiwi: Kiwipy) -> None:
    """A time limit and a dead letter are exceptions with their reason; progress that is no future is not sent."""
    task = Request(Envelope("raw", b""), "c", "r")
    sent = kiwi.write_reply("tasks", task, Outcome(OutcomeKind.TIME_LIMIT, None, "it took longer than 1 s"))
    assert sent is not None
    assert yaml.safe_load(sent.body) == {"exception": "it took longer than 1 s"}
    assert kiwi.write_reply("tasks", task, PAYLOADS.pack(50)) is None


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("tasks", b"just text"),
        ("tasks", b"[1, 2, 3]"),
        ("tasks", b"!!python/object/apply:os.system ['true']"),
        ("tasks", b"\xff\xfe\x00"),
        ("tasks", b"[!!python/name:os.system '', false]"),
        ("broadcast.#", b"[1]"),
        ("broadcast.#", b"subject: x"),
    ],
)
def test_bad_messages(kiwi: Kiwipy, target: str, body: bytes) -> None:
    """What is no message of kiwiPy, or builds objects, is a bad payload."""
    with pytest.raises(BadPayload):
        kiwi.read(target, body, NO_PROPERTIES)


def test_bad_reply(kiwi: Kiwipy) -> None:
    """What is no reply is a bad payload; a value that the encoder does not have is an error where it is sent."""
    with pytest.raises(BadPayload):
        kiwi.read_reply(b"[1]", NO_PROPERTIES)
    with pytest.raises(EncodeError, match="kiwipy cannot encode"):
        Kiwipy(encoder=lambda value: json.dumps(value).encode(), decoder=json.loads).write("rpc:a", request(b"\xff"))
