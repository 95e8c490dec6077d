"""oslo.messaging's messages: what its rabbit driver, 18.3, sent was recorded, and what we write is what it reads."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from redpoll.bus.engines.amqp.foreign.dialect import PAYLOADS, Request
from redpoll.bus.engines.amqp.foreign.oslo import Oslo
from redpoll.bus.engines.amqp.wire import NO_PROPERTIES, Properties
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.failures import AllowedExceptions, Failure, pack_failure
from redpoll.bus.notifications.records import Notification, pack, unpack
from redpoll.errors import BadPayload, ConfigError, EncodeError, RemoteError, Unsupported

# As oslo.messaging 18.3 wrote them.
CALL = (
    rb'{"oslo.version": "2.0", "oslo.message": "{\"method\": \"add\", \"args\": {\"a\": 1, \"b\": [2, null]}, '
    rb"\"namespace\": \"control\", \"version\": \"2.0\", \"_msg_id\": \"ab12\", \"_reply_q\": \"reply_cd\", "
    rb"\"_timeout\": null, \"_unique_id\": \"3c13561479d745c78c0d66e953b70057\", \"_context_user\": \"ada\", "
    rb'\"_context_roles\": [\"x\"]}"}'
)
FAILED = (
    rb'{"oslo.version": "2.0", "oslo.message": "{\"result\": null, \"failure\": \"{\\\"class\\\": \\\"ValueError\\\", '
    rb"\\\"module\\\": \\\"builtins\\\", \\\"message\\\": \\\"less than nothing\\\", \\\"tb\\\": "
    rb"[\\\"Traceback (most recent call last):\\\\n\\\", \\\"ValueError: less than nothing\\\\n\\\"], "
    rb"\\\"args\\\": [\\\"less than nothing\\\"], \\\"kwargs\\\": {}}\", \"ending\": true, \"_msg_id\": \"ab12\", "
    rb'\"_unique_id\": \"bbacfa0a34c748f9b62f57af00c3c7a7\"}"}'
)
NOTIFICATION = {
    "message_id": "6ee6cd0c-5ab5-4f8e-8ba0-6ad7cd32e5d8",
    "publisher_id": "compute.host-1",
    "event_type": "instance.started",
    "priority": "INFO",
    "payload": {"id": 7},
    "timestamp": "2026-11-24 18:42:41.500000",
    "_unique_id": "u",
    "_context_project": "p",
}


@pytest.fixture
def oslo() -> Oslo:
    """oslo.messaging's messages, with its defaults."""
    return Oslo()


def opened(body: bytes) -> dict[str, Any]:
    """The message in an envelope, as oslo.messaging opens it."""
    envelope = json.loads(body)
    assert envelope.keys() == {"oslo.version", "oslo.message"}
    assert envelope["oslo.version"] == "2.0"
    found: dict[str, Any] = json.loads(envelope["oslo.message"])
    assert len(found.pop("_unique_id")) == 32
    return found


def closed(message: dict[str, Any]) -> bytes:
    """A message in an envelope."""
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(message)}).encode()


def request(value: Any, meta: dict[str, Any] | None = None, **fields: Any) -> Request:
    """A request that waits for a reply, unless told otherwise."""
    return Request(PAYLOADS.pack(value, meta, fields.pop("headers", None)), "id-1", "reply_1", **fields)


def test_names(oslo: Oslo) -> None:
    """Topics, servers, scopes, pools and messages to all servers have the driver's exchanges, keys and queues."""

    def where(name: str) -> tuple[str, str, str]:
        queue = oslo.queue(name)
        ((exchange, key),) = queue.bindings
        assert (exchange.kind, exchange.durable, queue.durable, queue.arguments) == ("topic", False, False, {})
        return exchange.name, key, queue.name

    assert where("rpc:calc") == ("openstack", "calc", "calc")
    assert where("rpc:calc.@host-1") == ("openstack", "calc.host-1", "calc.host-1")
    assert where("rpc:/nova/calc.@host-1") == ("nova", "calc.host-1", "calc.host-1")
    assert where("notifications:audit.info") == ("openstack", "audit.info", "audit.info")
    assert where("notifications:audit.info.@billing") == ("openstack", "audit.info", "billing")
    everyone = oslo.events("rpc./nova/calc")
    assert everyone is not None
    ((exchange, _),) = everyone.bindings
    assert (exchange.name, exchange.kind, exchange.auto_delete, everyone.exclusive) == (
        "calc_fanout",
        "fanout",
        True,
        True,
    )
    assert oslo.events("broadcast.#") is None
    assert oslo.replies("ab").name == "reply_ab"
    for name in ("tasks", "broadcast:kept"):
        with pytest.raises(Unsupported, match="speak='oslo'"):
            oslo.queue(name)


def test_options() -> None:
    """The exchange, durable and quorum queues are options, as the driver's."""
    queue = Oslo(exchange="nova", quorum=True).queue("rpc:calc")
    assert (queue.durable, queue.arguments, queue.bindings[0][0].durable) == (True, {"x-queue-type": "quorum"}, True)
    assert queue.bindings[0][0].name == "nova"
    assert Oslo(durable=True).queue("rpc:calc").arguments == {}
    with pytest.raises(ConfigError, match="durable"):
        Oslo(durable="yes")  # type: ignore[arg-type]


def test_call_is_read(oslo: Oslo) -> None:
    """A call has its method, keywords, namespace, version, context and reply queue; one that is monitored says how often."""
    found = oslo.read("rpc:calc", CALL, NO_PROPERTIES)
    assert PAYLOADS.unpack(found.envelope) == {"a": 1, "b": [2, None]}
    assert found.envelope.meta == {"m": "add", "n": "control", "v": "2.0"}
    assert found.envelope.headers == {"user": "ada", "roles": ["x"]}
    assert (found.id, found.reply_to, found.wanted, found.subject) == ("ab12", "reply_cd", True, "")
    monitored = oslo.read("rpc:calc", CALL.replace(rb"\"_timeout\": null", rb"\"_timeout\": 4"), NO_PROPERTIES)
    assert (monitored.envelope.meta or {})["b"] == 4
    cast = oslo.read("rpc.calc", closed({"method": "log", "args": {}}), NO_PROPERTIES)
    assert (cast.wanted, cast.subject, cast.envelope.meta) == (False, "rpc.calc", {"m": "log"})


def test_call_is_written(oslo: Oslo) -> None:
    """A call is what the driver sends: the message in an envelope, the time that is left as its expiration."""
    meta = {"m": "add", "n": "control", "v": "2.0", "b": 1.5}
    sent = oslo.write("rpc:calc.@host-1", request({"a": 1}, meta, headers={"user": "ada"}, ttl=60.0))
    assert (sent.exchange.name, sent.key) == ("openstack", "calc.host-1")
    assert sent.properties == Properties("application/json", "utf-8", {}, 2, 0, expiration="60000")
    assert opened(sent.body) == {
        "method": "add",
        "args": {"a": 1},
        "namespace": "control",
        "version": "2.0",
        "_msg_id": "id-1",
        "_reply_q": "reply_1",
        "_timeout": 2,
        "_context_user": "ada",
    }
    cast = oslo.write("rpc:calc", request({}, {"m": "log"}, wanted=False))
    assert opened(cast.body) == {"method": "log", "args": {}}
    everyone = oslo.write("rpc.calc", request({}, {"m": "log"}, subject="rpc.calc"))
    assert (everyone.exchange.name, everyone.exchange.kind) == ("calc_fanout", "fanout")
    assert opened(everyone.body) == {"method": "log", "args": {}}


def test_what_it_has_not(oslo: Oslo) -> None:
    """Messages without a method, streams and broadcasts are refused; what JSON does not carry is an error."""
    for fields in ({"value": 1}, {"value": {}, "meta": {"m": "x", "w": 64}}, {"value": 1, "meta": {"m": "x"}}):
        with pytest.raises(Unsupported, match="speak='oslo'"):
            oslo.write("rpc:calc", request(**fields))
    with pytest.raises(Unsupported, match="fanout"):
        oslo.write("broadcast.x", request(1, subject="broadcast.x"))
    with pytest.raises(EncodeError, match="JSON"):
        oslo.write("rpc:calc", request({"a": b"\xff"}, {"m": "add"}))


def test_reply(oslo: Oslo) -> None:
    """Results, falsy ones too, and signs of life are read and written; replies go to the queue by the default exchange."""
    call = oslo.read("rpc:calc", CALL, NO_PROPERTIES)
    values: tuple[Any, ...] = (3, None, 0, False, [], {})
    for value in values:
        sent = oslo.write_reply("rpc:calc", call, Outcome(OutcomeKind.RESULT, PAYLOADS.pack(value)))
        assert sent is not None
        assert (sent.exchange.name, sent.key) == ("", "reply_cd")
        assert opened(sent.body) == {"result": value, "failure": None, "ending": True, "_msg_id": "ab12"}
        found, outcome = oslo.read_reply(sent.body, sent.properties)
        assert (found, outcome) == ("ab12", Outcome(OutcomeKind.RESULT, PAYLOADS.pack(value)))
    beat = oslo.write_reply("rpc:calc", call, Envelope("raw", b""))
    assert beat is not None
    assert opened(beat.body) == {"result": None, "failure": None, "ending": False, "_msg_id": "ab12"}
    assert oslo.read_reply(beat.body, beat.properties) == ("ab12", Envelope("raw", b""))


def test_exception_is_read(oslo: Oslo) -> None:
    """An exception of the driver is raised as itself, with its traceback; one with keywords only by its text."""
    found, outcome = oslo.read_reply(FAILED, NO_PROPERTIES)
    assert isinstance(outcome, Outcome)
    assert (found, outcome.kind) == ("ab12", OutcomeKind.ERROR)
    assert outcome.envelope is not None
    error = AllowedExceptions().rebuild(outcome.envelope)
    assert (type(error), error.args) == (ValueError, ("less than nothing",))
    assert isinstance(error.__cause__, RemoteError)
    assert "Traceback (most recent call last)" in str(error.__cause__.traceback)
    _, outcome = oslo.read_reply(FAILED.replace(rb"\"kwargs\\\": {}", rb"\"kwargs\\\": {\\\"a\\\": 1}"), NO_PROPERTIES)
    assert isinstance(outcome, Outcome)
    assert outcome.envelope is not None
    assert Failure.read(outcome.envelope).args is None


def test_exception_is_written(oslo: Oslo) -> None:
    """An exception has what the driver needs to build it; the server's own errors have the modules of the dispatcher."""

    def written(outcome: Outcome) -> dict[str, Any]:
        sent = oslo.write_reply("rpc:calc", Request(Envelope("raw", b""), "c", "r"), outcome)
        assert sent is not None
        found: dict[str, Any] = json.loads(opened(sent.body)["failure"])
        return found

    found = written(Outcome(OutcomeKind.ERROR, pack_failure(ValueError("no", 1))))
    assert (found["class"], found["module"], found["message"]) == ("ValueError", "builtins", "('no', 1)")
    assert (found["args"], found["kwargs"]) == (["no", 1], {})
    assert found["tb"] == ["ValueError: ('no', 1)\n"]
    found = written(Outcome(OutcomeKind.ERROR, pack_failure(RemoteError("NoSuchMethod", "'subtract'"))))
    assert (found["class"], found["module"]) == ("NoSuchMethod", "oslo_messaging.rpc.dispatcher")
    assert (
        written(Outcome(OutcomeKind.CANCELLED, None, "cancelled by its server"))["message"] == "cancelled by its server"
    )


def test_notification(oslo: Oslo) -> None:
    """Notifications, in an envelope or not, are read and written: ids, times, priorities, payloads, contexts."""
    for body in (closed(dict(NOTIFICATION)), json.dumps(NOTIFICATION).encode()):
        found = oslo.read("notifications:audit.info", body, NO_PROPERTIES)
        notification = unpack(PAYLOADS, found.envelope, 1, 1_000)
        assert (notification.publisher, notification.event, notification.priority, notification.payload) == (
            "compute.host-1",
            "instance.started",
            "info",
            {"id": 7},
        )
        assert (notification.id, notification.timestamp) == (NOTIFICATION["message_id"], 1_795_545_761.5)
        assert notification.headers == {"project": "p"}
    for compress in (False, True):
        told = Notification(
            event="e", payload="x" * 1_000, publisher="p", priority="warn", id="i", timestamp=1_795_545_761.5
        )
        sent = oslo.write("", Request(pack(PAYLOADS, told, compress), subject="notifications.audit.warn", wanted=False))
        assert (sent.exchange.name, sent.key) == ("openstack", "audit.warn")
        assert opened(sent.body) == {
            "message_id": "i",
            "publisher_id": "p",
            "event_type": "e",
            "priority": "WARN",
            "payload": "x" * 1_000,
            "timestamp": "2026-11-24 18:42:41.500000",
        }


def test_compressed(oslo: Oslo) -> None:
    """Bodies that kombu compressed are read, up to a size; others are bad."""
    head = Properties(headers={"compression": "application/x-gzip"})
    assert oslo.read("rpc:calc", zlib.compress(CALL), head).id == "ab12"
    for body in (zlib.compress(CALL)[:-5], b"\x00", zlib.compress(bytes(2**26 + 1))):
        with pytest.raises(BadPayload):
            oslo.read("rpc:calc", body, head)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"[1]",
        b"{}",
        b'{"method": 1}',
        b'{"method": "x", "args": [1]}',
        b'{"oslo.version": "3.0", "oslo.message": "{}"}',
        b'{"oslo.version": "2.0", "oslo.message": 1}',
        b"[" * 100_000,
    ],
)
def test_bad_messages(oslo: Oslo, body: bytes) -> None:
    """What is no call is a bad payload, and so is what is no reply."""
    with pytest.raises(BadPayload):
        oslo.read("rpc:calc", body, NO_PROPERTIES)
    with pytest.raises(BadPayload):
        oslo.read_reply(body, NO_PROPERTIES)


@pytest.mark.parametrize("failure", ["text", "{}", 7, '{"class": 1, "message": "x"}', "[" * 100_000])
def test_bad_exception(oslo: Oslo, failure: Any) -> None:
    """An exception that cannot be read is an error of unknown kind, not of the receiver."""
    _, outcome = oslo.read_reply(closed({"_msg_id": "a", "failure": failure}), NO_PROPERTIES)
    assert isinstance(outcome, Outcome)
    assert outcome.envelope is not None
    assert Failure.read(outcome.envelope).kind == "unknown"
