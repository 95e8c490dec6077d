"""Producers of notifications: a logging handler, and middlewares of web applications."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from redpoll.bus.notifications.notifier import Notifier
from redpoll.bus.notifications.records import Priority

__all__ = ["ASGIMiddleware", "NotificationHandler", "WSGIMiddleware"]

_LEVELS: Final[tuple[tuple[int, Priority], ...]] = (
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warn"),
    (logging.INFO, "info"),
)

_RECORD: Final = (
    "name",
    "levelno",
    "levelname",
    "pathname",
    "lineno",
    "module",
    "funcName",
    "created",
    "process",
    "thread",
)

#: Headers with one of these in their name are not sent.
_SECRET: Final = ("auth", "cookie", "token", "secret", "password", "api-key", "api_key")


class NotificationHandler(logging.Handler):
    """A logging handler that sends records as notifications of their level, as the event ``logrecord``.

    It never waits, and may be used in any thread; the notifier's loop sends. Records of redpoll itself are left out. With
    ``level=logging.ERROR`` it sends errors alone.

    Args:
        notifier: The notifier, on the running loop.
        level: The lowest level that is sent.
    """

    def __init__(self, notifier: Notifier, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._notifier = notifier.bind()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        if record.name.partition(".")[0] == "redpoll":
            return
        try:
            payload = {name: getattr(record, name) for name in _RECORD}
            payload["message"] = record.getMessage()
            payload["exception"] = self._exception(record)
            self._notifier.post(_priority(record.levelno), "logrecord", payload)
        except Exception:  # noqa: BLE001  # as every handler of logging
            self.handleError(record)

    @staticmethod
    def _exception(record: logging.LogRecord) -> str | None:
        return logging.Formatter().formatException(record.exc_info) if record.exc_info else None


def _priority(level: int) -> Priority:
    return next((priority for least, priority in _LEVELS if level >= least), "debug")


def _public(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: text for name, text in headers if not any(each in name.lower() for each in _SECRET)}


class ASGIMiddleware:
    """Sends ``http.request`` and ``http.response`` for each request of an ASGI application; ``error`` if it raises.

    Headers that may hold secrets are left out; so are queries, which may as well. The application does not wait for it.

    Args:
        app: The application.
        notifier: The notifier.
        ignore: Methods that nothing is sent for.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], notifier: Notifier, ignore: Iterable[str] = ()) -> None:
        self._app = app
        self._notifier = notifier
        self._ignored = frozenset(each.upper() for each in ignore)

    async def __call__(
        self, scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Serve a request."""
        if scope["type"] != "http" or scope["method"] in self._ignored:
            await self._app(scope, receive, send)
            return
        notifier = self._notifier.bind()
        request = {
            "method": scope["method"],
            "path": scope["path"],
            "headers": _public((name.decode("latin-1"), text.decode("latin-1")) for name, text in scope["headers"]),
        }
        with _told(notifier, request) as status:

            async def sent(message: Mapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    status.append(message["status"])
                await send(message)

            await self._app(scope, receive, sent)


class WSGIMiddleware:
    """The same for a WSGI application, in any threads.

    Args:
        app: The application.
        notifier: The notifier, on the running loop.
        ignore: Methods that nothing is sent for.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]], notifier: Notifier, ignore: Iterable[str] = ()) -> None:
        self._app = app
        self._notifier = notifier.bind()
        self._ignored = frozenset(each.upper() for each in ignore)

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve a request."""
        if environ["REQUEST_METHOD"] in self._ignored:
            return self._app(environ, start_response)
        names = (name for name in environ if name.startswith("HTTP_"))
        request = {
            "method": environ["REQUEST_METHOD"],
            "path": environ.get("PATH_INFO", ""),
            "headers": _public((name[5:].replace("_", "-").lower(), str(environ[name])) for name in names),
        }
        with _told(self._notifier, request) as status:

            def start(text: str, *rest: Any) -> Any:
                status.append(int(text.split(maxsplit=1)[0]))
                return start_response(text, *rest)

            return self._app(environ, start)


@contextmanager
def _told(notifier: Notifier, request: Mapping[str, Any]) -> Iterator[list[int]]:
    """Notify of a request, and of its response: the status that the block adds, or its exception."""
    notifier.post("info", "http.request", {"request": request})
    began = time.monotonic()
    status: list[int] = []

    def respond(priority: Priority, **response: Any) -> None:
        response["seconds"] = time.monotonic() - began
        notifier.post(priority, "http.response", {"request": request, "response": response})

    try:
        yield status
    except Exception as error:
        respond("error", exception=type(error).__name__)
        raise
    respond("info", status=status[0] if status else None)
