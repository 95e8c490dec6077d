"""Exceptions that are sent, and what they become."""

from __future__ import annotations

import decimal
import sys
from types import ModuleType
from typing import Any

import pytest

import redpoll
from redpoll import serializers
from redpoll.bus import Broadcast
from redpoll.bus.envelope import Envelope
from redpoll.bus.failures import AllowedExceptions, pack_failure
from redpoll.bus.notifications import Notification
from redpoll.errors import ConfigError, NoRoute, RemoteError
from tests.node.support import until


class OwnError(Exception):
    """One of this module."""


class OtherError(OwnError):
    """Another one."""


class PickyError(Exception):
    """Cannot be made from what it holds."""

    def __init__(self, a: int, *, b: int) -> None:
        super().__init__(a)


def trip(error: Exception, *allowed: Any) -> Exception:
    """What an exception becomes at the other end."""
    try:
        raise error  # noqa: TRY301
    except Exception as raised:  # noqa: BLE001
        return AllowedExceptions(allowed).rebuild(pack_failure(raised))


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("k"), OSError(2, "gone"), UnicodeError(), ZeroDivisionError()]
)
def test_exceptions_of_python_are_themselves(error: Exception) -> None:
    """O-05: an exception of Python is raised as what it is, with the remote one, its traceback in it, as the cause."""
    found = trip(error)
    assert (type(found), found.args) == (type(error), error.args)
    remote = found.__cause__
    assert isinstance(remote, RemoteError)
    assert remote.kind == type(error).__name__
    assert "raise error" in str(remote.traceback)
    assert remote.__notes__[0].startswith("Remote Traceback")


def test_texts_that_cannot_be_sent() -> None:
    """The text of an exception that is no UTF-8, as the name of a file may be, is sent escaped."""
    error = ValueError("\udcff")
    error.add_note("\udcfe")
    found = trip(error)
    assert (type(found), str(found)) == (ValueError, "\\udcff")
    assert "\\udcfe" in str(found.__cause__.traceback)  # type: ignore[union-attr]


def test_other_exceptions_need_to_be_allowed() -> None:
    """Oslo 13: a class by itself, exactly; or all that are defined in a module; anything else is a RemoteError."""
    assert type(trip(OwnError("x"))) is RemoteError
    assert str(trip(OwnError("x"))) == "remote OwnError: x"
    assert type(trip(OwnError("x"), OwnError)) is OwnError
    assert type(trip(OtherError("x"), OwnError)) is RemoteError
    assert type(trip(OtherError("x"), __name__)) is OtherError
    assert type(trip(NoRoute("t"), "redpoll.errors")) is NoRoute
    # Imported there, defined elsewhere.
    assert type(trip(decimal.InvalidOperation(), "_pydecimal")) is RemoteError
    with pytest.raises(ConfigError, match="allowed_exceptions"):
        AllowedExceptions([BaseException])  # type: ignore[list-item]


def failure(*parts: Any) -> Envelope:
    """An envelope as somebody might write it."""
    return Envelope("msgpack", serializers.msgpack.encode(parts))


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("builtins", "SystemExit"),
        ("builtins", "KeyboardInterrupt"),
        ("builtins", "StopIteration"),
        ("builtins", "StopAsyncIteration"),
        ("builtins", "print"),
        ("builtins", "Nothing"),
        ("builtins", "OwnError.__init__"),
        ("os", "error"),
        ("not.there", "Error"),
        ("lazy_module", "Error"),
    ],
)
def test_nothing_else_is_made_of_what_came(module: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oslo 13: what is no Exception, not there, or would have to be imported first stays a RemoteError."""
    lazy = ModuleType("lazy_module")

    def get(name: str) -> None:
        raise AssertionError(name)

    lazy.__getattr__ = get  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    found = AllowedExceptions(["not.there", "lazy_module", "os"]).rebuild(failure(module, kind, "text", [], None))
    assert type(found) is RemoteError
    assert (found.kind, found.text) == (kind, "text")


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", serializers.msgpack.encode(3), serializers.msgpack.encode([1, 2, 3, 4, 5])]
)
def test_garbage_is_a_remote_error(body: bytes) -> None:
    """What cannot be read as a failure is one all the same."""
    assert isinstance(AllowedExceptions().rebuild(Envelope("msgpack", body)), RemoteError)


def test_what_cannot_be_carried_is_text() -> None:
    """Arguments that cannot be written are replaced by the text; a constructor that fails leaves the RemoteError."""
    found = trip(ValueError(object))
    assert found.args == (str(ValueError(object)),)
    assert len(trip(ValueError("x" * 100_000)).args[0]) == 8_192
    assert type(trip(PickyError(1, b=2), PickyError)) is RemoteError

    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "cannot be had" in str(trip(SilentError()))


def test_a_failure_from_elsewhere_keeps_what_it_is() -> None:
    """A RemoteError that a handler lets through names the exception where it was raised."""
    found = trip(RemoteError("Far", "away", "its traceback"))
    assert isinstance(found, RemoteError)
    assert (found.kind, found.text, found.traceback) == ("Far", "away", "its traceback")
    assert AllowedExceptions().rebuild(pack_failure(ValueError("x"), traceback=False)).__cause__.traceback is None  # type: ignore[union-attr]


def test_those_of_python_itself_can_be_left_out() -> None:
    """Where nothing but what was allowed is wanted, a built-in exception is a RemoteError as well."""
    strict = AllowedExceptions([KeyError], builtins=False)
    assert type(strict.rebuild(pack_failure(KeyError("k")))) is KeyError
    assert isinstance(strict.rebuild(pack_failure(ValueError("x"))), RemoteError)


class _Raising:
    """An endpoint of calls, and one of notifications, that raises."""

    def fail(self) -> None:
        """A call."""
        raise KeyError("call")

    def info(self, _: Notification) -> None:
        """A notification."""
        raise KeyError("notification")


@pytest.mark.asyncio
async def test_what_raises_is_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """Of calls, broadcasts and notifications that raise, the first has its traceback at once; later ones are counted."""

    def fail(_: Broadcast) -> None:
        raise KeyError("broadcast")

    async with redpoll.connect("memory://") as bus:
        async with (
            bus.rpc.serve("s", _Raising()),
            bus.broadcast.subscribe(fail) as subscription,
            bus.notifications.listen(_Raising()) as listener,
        ):
            notifier = bus.notifier("p")
            for _ in range(5):
                with pytest.raises(KeyError):
                    await bus.rpc.call("s", "fail")
                await bus.broadcast.send(1)
                await notifier.info("e", 1)
            await until(lambda: subscription.failed == listener.stats.failed == 5, "the last failures")
            assert len(caplog.records) == 3
    assert sorted(each.message for each in caplog.records) == [
        "4 calls, the last one of 's': fail failed",
        "<BroadcastSubscription active> could not take 4 broadcasts, the last one",
        "<BroadcastSubscription active> could not take a broadcast",
        "a listener failed 4 times, the last time with 1 of priority info",
        "a listener failed with 1 of priority info",
        "call of 's': fail failed",
    ]
    assert all(each.exc_info for each in caplog.records)
