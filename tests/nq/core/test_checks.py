"""Checks of the options of communicators."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from redpoll.errors import ConfigError
from redpoll.nq.core import checks


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "0.0.0.0", "::", "localhost", "broker.example"])
def test_hosts(host: str) -> None:
    """Addresses of both families and names are hosts."""
    assert checks.host(host) is None


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        (5, "must be text, not int"),
        ("", "needs a host"),
        ("localhost:80", "has a port"),
        ("unix:/a", "must be an IP address or a name"),
        ("inproc:a", "must be an IP address or a name"),
    ],
)
def test_no_hosts(host: Any, problem: str) -> None:
    """What cannot be listened at and dialled is told with the reason."""
    assert problem in (checks.host(host) or "")


def test_ids() -> None:
    """An id is a UUID; the nil one is nobody's."""
    assert checks.identity(uuid.uuid4()) is None
    assert checks.identity(str(uuid.uuid4())) == "must be a uuid.UUID, not str"
    assert checks.identity(uuid.UUID(int=0)) == "must not be the nil UUID"


def test_functions_and_instances() -> None:
    """What is to be called can be; an object is of its class."""
    assert checks.function(print) is None
    assert checks.function(5) == "must be a function, not int"
    assert checks.instance(int)(5) is None
    assert checks.instance(ConfigError)(5) == "must be a ConfigError, not int"
    assert checks.instance(OSError)(5) == "must be an OSError, not int"


def test_paths() -> None:
    """Text and what stands for a path becomes one."""
    assert checks.path("key", None) is None
    assert checks.path("key", "key.pem") == checks.path("key", Path("key.pem")) == Path("key.pem")
    for bad in (5, b"key.pem", ""):
        with pytest.raises(ConfigError, match="must be a path") as caught:
            checks.path("key", bad)
        assert caught.value.hint == 'key=Path("key.pem")'


@pytest.mark.parametrize("prefix", ["redpoll", "site/7/queue", "ä", "a b"])
def test_prefixes(prefix: str) -> None:
    """Levels of a topic are a prefix."""
    assert checks.prefix(prefix) is None


@pytest.mark.parametrize("prefix", ["", "/a", "a/", "a//b", "a/+/b", "#", "$SYS", "a\0", "a\n", "x" * 201, b"a"])
def test_no_prefixes(prefix: Any) -> None:
    """Wildcards, empty levels, topics of the broker and what no topic may hold are refused."""
    assert "must" in (checks.prefix(prefix) or "")


def test_texts_and_secrets() -> None:
    """Text is not empty; a secret is 16 bytes."""
    assert checks.text("a") is None
    assert checks.text("") == checks.text(b"a") == "must be text, and not empty"
    assert checks.secret(bytes(16)) is None
    assert checks.secret(bytes(15)) == "must be 16 bytes, not 15"
    assert checks.secret("x" * 16) == "must be bytes, not str"


def test_the_error_names_the_option() -> None:
    """The first value that is wrong is named, with the remedy; a secret is not shown."""
    with pytest.raises(ConfigError, match=r"^port='5': no \(int\(text\)") as caught:
        checks.check_all({"port": "5"}, {"port": lambda value: "no"})
    assert (caught.value.field, caught.value.value, caught.value.problem) == ("port", "5", "no")
    with pytest.raises(ConfigError) as caught:
        checks.check_all({"secret": b"hidden"}, {"secret": checks.secret}, shown=False)
    assert "hidden" not in str(caught.value)
    assert b"hidden" not in caught.value.args
