"""URLs of engines."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from redpoll.bus import EngineURL, connect
from redpoll.errors import ConfigError


def test_a_url_is_read() -> None:
    """Hosts, ports, user, password, path and options come out of a URL, percent-decoded."""
    url = EngineURL.parse("AMQP://me:p%40ss@one:5672,[::1]:7,two/v%2Fhost?heartbeat=3&x=")
    assert url.scheme == "amqp"
    assert url.hosts == (("one", 5672), ("::1", 7), ("two", None))
    assert (url.user, url.password, url.path) == ("me", "p@ss", "v/host")
    assert url.options == (("heartbeat", "3"), ("x", ""))
    assert str(url) == "amqp://one,[::1],two"
    assert EngineURL.parse("memory://") == EngineURL("memory", (), None, None, "", ())


def test_the_user_may_stand_before_each_host() -> None:
    """A URL that repeats the user and the password for each host, as oslo.messaging's do, is read; others' are refused."""
    url = EngineURL.parse("amqp://me:secret@one:1,me:secret@two:2/v")
    assert (url.user, url.password, url.hosts, url.path) == ("me", "secret", (("one", 1), ("two", 2)), "v")
    with pytest.raises(ConfigError, match="different users or passwords") as caught:
        EngineURL.parse("amqp://me:secret@one,me:other@two")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["memory", "", "redpoll://host:port", "redpoll://host:99999", "x://a?b"])
def test_what_is_no_url_is_refused(text: str) -> None:
    """A text that is no URL is an error, which does not show a password."""
    with pytest.raises(ConfigError, match="url="):
        EngineURL.parse(text)
    with pytest.raises(ConfigError) as caught:
        EngineURL.parse("redpoll://me:secret@host:port")
    assert "secret" not in str(caught.value)


def test_an_object_is_no_url() -> None:
    """What is not text at all is an error that names its type alone."""
    not_text: Any = b"amqp://me:secret@host"
    with pytest.raises(ConfigError, match=r"^url='…': must be text, not bytes$"):
        connect(not_text)


def test_other_packages_add_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point of the group redpoll.engines makes the engine of its scheme, given the URL and the options."""
    seen: list[Any] = []

    def entry_points(group: str) -> EntryPoints:
        assert group == "redpoll.engines"
        return EntryPoints([EntryPoint("mine", "tests.bus.test_urls:made", group)])

    monkeypatch.setattr("redpoll.bus.urls.entry_points", entry_points)
    monkeypatch.setattr(EntryPoint, "load", lambda self: lambda url, options: seen.append((url, options)))
    connect("mine://host", speed=3)
    connect("mine://host", wait=True, connect_timeout=2)
    assert [(str(url), options) for url, options in seen] == [
        ("mine://host", {"speed": 3}),
        ("mine://host", {"wait": True, "connect_timeout": 2}),
    ]


def test_a_password_is_shown_nowhere() -> None:
    """Neither the text of a URL, nor its repr, nor the error of one that is none shows the password."""
    url = EngineURL.parse("redpoll://ada:swordfish@host:1/x")
    assert url.password == "swordfish"
    assert "swordfish" not in f"{url} {url!r}"
    for wrong in ("ada:swordfish@host", "redpoll://ada:swordfish@host:x"):
        with pytest.raises(ConfigError) as caught:
            EngineURL.parse(wrong)
        assert "swordfish" not in str(caught.value)
        assert "swordfish" not in repr(caught.value)
