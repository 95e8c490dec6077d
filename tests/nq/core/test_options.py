"""The options of communicators: net-queue's names, orders and defaults, ours beside them, and errors that name them."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
import sys
import textwrap
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redpoll.errors import ConfigError, UsageError
from redpoll.nq import (
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    NetworkLocation,
    SecurityOptions,
    SerializationOptions,
    Stream,
)

RECORDS = (CommunicatorOptions, ConnectionOptions, EventOptions, SecurityOptions, SerializationOptions)

CONNECTION = {
    "get_merge": True,
    "put_merge": True,
    "drop_oldest": True,
    "transport_size": 16 * 2**20,
    "queue_size": 2**30,
    "message_size": 2**40,
    "queue_bytes": None,
    "full": "refuse",
    "confirm": "receive",
    "keepalive": 5.0,
    "resume": 30.0,
}
LIMITS = {
    "transport_size": (4096, 2**30),
    "queue_size": (1, 2**63 - 1),
    "message_size": (1, 2**63 - 1),
    "queue_bytes": (1, 2**63 - 1),
}


def refused(make: Callable[..., Any], **options: Any) -> str:
    """The text of the error that names one option."""
    with pytest.raises(ConfigError) as caught:
        make(**options)
    assert caught.value.field in options
    return str(caught.value)


# ---- Source compatibility


def test_the_order_is_that_of_version_2_6() -> None:
    """Positional arguments mean what they mean in net-queue 2.6; further options are given by name alone."""
    located = NetworkLocation("::1", 5)
    connection = ConnectionOptions(False, False, False, 65_536, 3, 1000)
    security = SecurityOptions(Path("key.pem"), Path("cert.pem"))
    serialization = SerializationOptions(len, Stream.frombuffer)
    events = EventOptions(print, id)
    who = uuid.uuid4()
    options = CommunicatorOptions(who, located, connection, serialization, security, events, 4)
    assert dataclasses.astuple(connection)[:6] == (False, False, False, 65_536, 3, 1000)
    assert (security.key, security.cert) == (Path("key.pem"), Path("cert.pem"))
    assert (serialization.load, serialization.dump) == (len, Stream.frombuffer)
    assert (events.ini, events.fin) == (print, id)
    assert options.id == who
    assert (options.netloc, options.connection, options.serialization) == (located, connection, serialization)
    assert (options.security, options.events, options.workers) == (security, events, 4)
    with pytest.raises(TypeError):
        ConnectionOptions(True, True, True, 65_536, 3, 1000, 5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        CommunicatorOptions(who, located, connection, serialization, security, events, 4, bytes(16))  # type: ignore[call-arg]


def test_the_order_of_version_2_4_is_an_error_that_says_so() -> None:
    """Where net-queue 2.4 had another option in a place, the error says which."""
    with pytest.raises(ConfigError, match=r"^drop_oldest=65536: .*2\.4 had transport_size in this place"):
        ConnectionOptions(True, True, 65_536)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^events=4: .*2\.4 had workers in this place"):
        CommunicatorOptions(uuid.uuid4(), NetworkLocation(), ConnectionOptions(), SerializationOptions(), None, 4)  # type: ignore[arg-type]


def test_the_defaults_are_net_queues() -> None:
    """Each default is that of net-queue, and ours change nothing."""
    options = CommunicatorOptions()
    assert dataclasses.asdict(options.connection) == CONNECTION
    assert options.netloc == ("127.0.0.1", 0xCAFE)
    assert (options.security, options.workers) == (None, 1)
    assert (options.secret, options.allow_plain, options.prefix) == (None, False, "redpoll")
    assert (options.username, options.password) == (None, None)
    assert options.events.ini(options.id) is options.events.fin(options.id) is None


def test_every_record_has_an_id_of_its_own() -> None:
    """Two communicators of one process are two, also if neither was given an id."""
    assert CommunicatorOptions().id != CommunicatorOptions().id


def test_the_default_serializer_carries_objects() -> None:
    """What it dumps it loads."""
    options = SerializationOptions()
    assert options.load(options.dump({"a": [1, None]})) == {"a": [1, None]}


@pytest.mark.parametrize("record", RECORDS)
def test_records_are_frozen_and_slotted(record: Any) -> None:
    """No field changes, and there is none beside them; equal ones are equal keys."""
    made = record()
    name = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, name, None)
    assert not hasattr(made, "__dict__")
    assert hash(dataclasses.replace(made)) == hash(made)
    assert dataclasses.replace(made) == made


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_is_documented(record: Any) -> None:
    """Each field has a docstring behind it, or stands in that of its class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    assert isinstance(body, ast.ClassDef)
    documented = {
        here.target.id
        for here, after in zip(body.body, body.body[1:], strict=False)
        if isinstance(here, ast.AnnAssign)
        and isinstance(here.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }
    missing = {each.name for each in dataclasses.fields(record)} - documented
    assert not [name for name in missing if f"\n    {name}: " not in inspect.getdoc(record)]  # type: ignore[operator]


def test_replace() -> None:
    """A copy with some fields changed keeps the others, and is checked as well."""
    options = CommunicatorOptions(secret=bytes(16))
    other = dataclasses.replace(options, workers=3)
    assert (other.id, other.secret, other.workers) == (options.id, bytes(16), 3)
    with pytest.raises(ConfigError, match=r"^workers=0: "):
        dataclasses.replace(options, workers=0)
    if sys.version_info >= (3, 13):
        assert copy.replace(options, workers=3) == other
        assert copy.replace(options.netloc, port=7).port == 7


# ---- Where


def test_location() -> None:
    """It is a tuple with names, whose text can be dialled, for IPv6 too."""
    assert NetworkLocation() == ("127.0.0.1", 51966)
    host, port = NetworkLocation("localhost", port=80)
    assert (host, port) == ("localhost", 80)
    assert str(NetworkLocation("localhost", 80)) == "localhost:80"
    assert str(NetworkLocation("::1", 80)) == str(NetworkLocation("[::1]", 80)) == "[::1]:80"
    assert repr(NetworkLocation()) == "NetworkLocation(host='127.0.0.1', port=51966)"
    assert NetworkLocation()._replace(port=7) == ("127.0.0.1", 7)
    assert pickle.loads(pickle.dumps(NetworkLocation("a", 5))) == NetworkLocation("a", 5)
    assert type(pickle.loads(pickle.dumps(NetworkLocation()))) is NetworkLocation


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: NetworkLocation(port="5"), "port"),  # type: ignore[arg-type]
        (lambda: NetworkLocation("localhost", 65_536), "port"),
        (lambda: NetworkLocation(port=-1), "port"),
        (lambda: NetworkLocation(port=True), "port"),
        (lambda: NetworkLocation("localhost:5"), "host"),
        (lambda: NetworkLocation(b"localhost"), "host"),  # type: ignore[arg-type]
        (lambda: NetworkLocation()._replace(port=-1), "port"),
    ],
)
def test_no_location(make: Callable[[], Any], field: str) -> None:
    """A host or port that cannot be is found when it is given, also where one is replaced."""
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


# ---- How much


@pytest.mark.parametrize("name", LIMITS)
def test_sizes_have_limits(name: str) -> None:
    """Both limits are taken, what is beyond is not, nor is what is no int."""
    low, high = LIMITS[name]
    for size in (low, high):
        assert getattr(ConnectionOptions(**{name: size}), name) == size  # type: ignore[arg-type]
    for size in (low - 1, high + 1, -1):
        assert f"must be {low} to {high}" in refused(ConnectionOptions, **{name: size})
    for other in (True, 5.0, "5"):
        assert "must be an int" in refused(ConnectionOptions, **{name: other})


@pytest.mark.parametrize("name", ["keepalive", "resume"])
def test_times_are_seconds(name: str) -> None:
    """A time is above 0 and at most a year, and never None."""
    assert getattr(ConnectionOptions(**{name: 1}), name) == 1  # type: ignore[arg-type]
    for bad in (0, -1, None, "5"):
        assert "seconds" in refused(ConnectionOptions, **{name: bad})


@pytest.mark.parametrize("name", ["get_merge", "put_merge", "drop_oldest"])
def test_flags(name: str) -> None:
    """A flag is True or False."""
    for value in (True, False):
        assert getattr(ConnectionOptions(**{name: value}), name) is value  # type: ignore[arg-type]
    assert "must be True or False" in refused(ConnectionOptions, **{name: "yes"})


def test_choices() -> None:
    """What happens at a limit and when a put is done are words, and a wrong one is told the right ones."""
    assert "'refuse', 'drop', 'wait'" in refused(ConnectionOptions, full="block")
    assert "'receive', 'get'" in refused(ConnectionOptions, confirm="sent")


def test_dropping_implies_get() -> None:
    """What can still be dropped from a queue is not confirmed before it is got."""
    assert ConnectionOptions().effective_confirm == "receive"
    assert ConnectionOptions(confirm="get").effective_confirm == "get"
    assert ConnectionOptions(full="wait").effective_confirm == "receive"
    assert ConnectionOptions(full="drop").effective_confirm == "get"


# ---- Who and how


def test_security_has_both_spellings() -> None:
    """Both names of the certificate are one file: either is taken, both are readable, the same twice is no contradiction."""
    for made in (SecurityOptions(cert="a.pem"), SecurityOptions(certificate="a.pem"), SecurityOptions(None, "a.pem")):
        assert made == SecurityOptions(cert=Path("a.pem"))
        assert made.cert == made.certificate == Path("a.pem")
    assert SecurityOptions(cert="a.pem", certificate=Path("a.pem")).cert == Path("a.pem")
    assert SecurityOptions().certificate is None
    assert repr(SecurityOptions("k", "c")) == f"SecurityOptions(key={Path('k')!r}, cert={Path('c')!r})"


def test_two_certificates_are_an_error() -> None:
    """Both spellings with different files is an error that says that they mean the same."""
    with pytest.raises(ConfigError, match=r"cert=a\.pem, which means the same \(pass one of them\)"):
        SecurityOptions(cert="a.pem", certificate="b.pem")
    assert "must be a path" in refused(SecurityOptions, key=5)


def test_replacing_a_certificate() -> None:
    """Either spelling replaces it, and the key stays."""
    security = SecurityOptions("k.pem", "a.pem")
    assert dataclasses.replace(security, cert=Path("b.pem")) == SecurityOptions("k.pem", "b.pem")
    assert security.__replace__(cert="b.pem") == SecurityOptions("k.pem", "b.pem")
    assert security.__replace__(certificate="b.pem") == SecurityOptions("k.pem", "b.pem")
    assert security.__replace__(key=None) == SecurityOptions(None, "a.pem")
    if sys.version_info >= (3, 13):
        assert copy.replace(security, certificate="b.pem").cert == Path("b.pem")  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("id", "5", "must be a uuid.UUID, not str (uuid.uuid4() for a new one"),
        ("id", uuid.UUID(int=0), "must not be the nil UUID"),
        ("netloc", ("localhost", 5), "must be a NetworkLocation, not tuple (NetworkLocation(host, port))"),
        ("connection", {}, "must be a ConnectionOptions, not dict"),
        ("serialization", print, "must be a SerializationOptions"),
        ("security", True, "must be a SecurityOptions, not bool"),
        ("events", print, "must be an EventOptions"),
        ("workers", 0, "must be 1 to "),
        ("allow_plain", 1, "must be True or False, not int"),
        ("prefix", "a/#", "must be the levels of a topic"),
        ("username", "", "must be text, and not empty"),
        ("secret", b"x" * 15, "must be 16 bytes, not 15 (secrets.token_bytes(16))"),
        ("secret", "x" * 16, "must be bytes, not str"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: Any, problem: str) -> None:
    """A wrong value is found when it is given; the error names option, value and remedy, and is a ValueError."""
    text = refused(CommunicatorOptions, **{name: value})
    assert text.startswith(f"{name}=")
    assert problem in text
    assert issubclass(ConfigError, UsageError)
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize("record", [SerializationOptions, EventOptions])
def test_functions(record: Any) -> None:
    """Only what can be called is taken for a function."""
    for each in dataclasses.fields(record):
        assert "must be a function, not int" in refused(record, **{each.name: 5})


def test_secrets_are_not_shown() -> None:
    """Neither repr nor an error shows a secret or a password."""
    options = CommunicatorOptions(secret=b"S3cretS3cretS3cr", username="me", password="PassW0rd")
    assert "S3cret" not in repr(options)
    assert "PassW0rd" not in repr(options)
    assert "username='me'" in repr(options)
    for wrong in ({"secret": b"S3cret"}, {"password": b"PassW0rd", "username": "me"}, {"password": "PassW0rd"}):
        with pytest.raises(ConfigError) as caught:
            CommunicatorOptions(**wrong)
        for shown in (str(caught.value), repr(caught.value), repr(caught.value.args)):
            assert "S3cret" not in shown
            assert "PassW0rd" not in shown


def test_a_password_needs_a_name() -> None:
    """MQTT has no password without a name."""
    with pytest.raises(ConfigError, match="pass username as well"):
        CommunicatorOptions(password="a")
    assert CommunicatorOptions(username="me", password="a").password == "a"
