"""What sends notifications by itself."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from redpoll.bus.notifications import ASGIMiddleware, Notification, NotificationHandler, WSGIMiddleware
from tests.bus.patterns import bus_in_virtual_time, until

pytestmark = pytest.mark.asyncio


@contextmanager
def logger(handler: logging.Handler) -> Iterator[logging.Logger]:
    """A logger with a handler."""
    found = logging.getLogger("someone")
    found.setLevel(logging.DEBUG)
    found.propagate = False
    found.addHandler(handler)
    yield found
    found.removeHandler(handler)


async def test_log_records_become_notifications() -> None:
    """O-21: a record of each level arrives as one ``logrecord`` of that priority with 12 fields; also from a thread."""
    seen: list[Notification] = []

    async def take(notification: Notification) -> None:
        seen.append(notification)

    async with bus_in_virtual_time() as (bus, _), bus.notifications.listen(take):
        with logger(NotificationHandler(bus.notifier("p"))) as log:
            for level in ("debug", "info", "warning", "error", "critical"):
                getattr(log, level)("%s of %d", level, 5)
            thread = threading.Thread(target=log.info, args=("from a thread",))
            thread.start()
            thread.join()
            try:
                raise ValueError("inside")  # noqa: TRY301
            except ValueError:
                log.exception("failed")
            await until(lambda: len(seen) == 7)
    found = {each.payload["message"]: each for each in seen}
    assert {each.event for each in seen} == {"logrecord"}
    assert found["warning of 5"].priority == "warn"
    assert found["debug of 5"].priority == "debug"
    assert found["from a thread"].payload["thread"] != found["info of 5"].payload["thread"]
    assert "ValueError: inside" in found["failed"].payload["exception"]
    assert len(found["failed"].payload) == 12


async def test_a_handler_may_send_errors_alone() -> None:
    """A handler with the level of errors sends these and worse; records of redpoll itself are not sent by any."""
    async with bus_in_virtual_time() as (bus, _):
        with logger(NotificationHandler(bus.notifier("p"), logging.ERROR)) as log:
            log.warning("no")
            log.error("yes")
        handler = NotificationHandler(bus.notifier("p"))
        handler.handle(logging.LogRecord("redpoll.bus", logging.ERROR, "", 1, "x", None, None))
        await bus.notifications.close()
        assert bus.notifications.stats.by_priority == {"error": 1}


async def test_posting_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is posted when the bus is closed, or too much waits, is dropped and counted; what fails is logged."""
    async with bus_in_virtual_time() as (bus, _):
        notifier = bus.notifier("p")
        notifier.post("info", "e")
        assert notifier.stats.dropped == 1
        notifier.bind()
        for number in range(10_050):
            notifier.post("info", "e", number)
        await bus.notifications.close()
        assert (notifier.stats.sent, notifier.stats.dropped) == (10_000, 51)
    notifier.post("info", "e")
    await bus.notifications.close()
    loop = asyncio.new_event_loop()
    loop.close()
    notifier._loop = loop
    notifier.post("info", "e")
    assert notifier.stats.dropped == 52
    # It is closed by its thread just behind the look.
    monkeypatch.setattr(loop, "is_closed", lambda: False)

    def closed(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(loop, "call_soon_threadsafe", closed)
    notifier.post("info", "e")
    assert notifier.stats.dropped == 53


HEADERS = [(b"accept", b"text"), (b"Authorization", b"Bearer x"), (b"x-auth-token", b"y"), (b"cookie", b"z")]


async def test_requests_of_asgi_are_told() -> None:
    """A request and its response are told, without secrets; one that raises is an error; others are left alone."""
    seen: list[Notification] = []

    async def take(notification: Notification) -> None:
        seen.append(notification)

    async def app(scope: Any, _: Any, send: Any) -> None:
        if scope["path"] == "/bad":
            raise ValueError("bad")
        await send({"type": "http.response.start", "status": 204})

    async def send(_: Any) -> None:
        """Take the response."""

    def scope(path: str, method: str = "GET", kind: str = "http") -> dict[str, Any]:
        return {"type": kind, "method": method, "path": path, "headers": HEADERS}

    async with bus_in_virtual_time() as (bus, _), bus.notifications.listen(take, concurrency=1):
        middleware = ASGIMiddleware(app, bus.notifier("web"), ignore=["options"])
        await middleware(scope("/good"), None, send)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="bad"):
            await middleware(scope("/bad"), None, send)  # type: ignore[arg-type]
        await middleware(scope("/good", "OPTIONS"), None, send)  # type: ignore[arg-type]
        await middleware(scope("/good", kind="lifespan"), None, send)  # type: ignore[arg-type]
        await until(lambda: len(seen) == 4)
    told = sorted((each.event, each.priority, each.payload["request"]["path"]) for each in seen)
    assert told == [
        ("http.request", "info", "/bad"),
        ("http.request", "info", "/good"),
        ("http.response", "error", "/bad"),
        ("http.response", "info", "/good"),
    ]
    assert all(each.payload["request"]["headers"] == {"accept": "text"} for each in seen)
    responses = {each.priority: each.payload["response"] for each in seen if each.event == "http.response"}
    assert responses["info"]["status"] == 204
    assert responses["error"]["exception"] == "ValueError"


async def test_requests_of_wsgi_are_told() -> None:
    """The same for a WSGI application, from the thread of its server."""
    seen: list[Notification] = []

    async def take(notification: Notification) -> None:
        seen.append(notification)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/bad":
            raise ValueError("bad")
        start_response("201 Created", [])
        return [b"body"]

    def serve(middleware: WSGIMiddleware, path: str, method: str = "POST") -> list[bytes]:
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_ACCEPT": "a", "HTTP_X_AUTH_TOKEN": "t"}
        return list(middleware(environ, lambda *_: None))

    async with bus_in_virtual_time() as (bus, _), bus.notifications.listen(take):
        middleware = WSGIMiddleware(app, bus.notifier("web"), ignore=["GET"])
        assert await asyncio.to_thread(serve, middleware, "/good") == [b"body"]
        assert await asyncio.to_thread(serve, middleware, "/good", "GET") == [b"body"]
        with pytest.raises(ValueError, match="bad"):
            await asyncio.to_thread(serve, middleware, "/bad")
        await until(lambda: len(seen) == 4)
    assert sorted(each.priority for each in seen) == ["error", "info", "info", "info"]
    assert seen[0].payload["request"] == {"method": "POST", "path": "/good", "headers": {"accept": "a"}}
