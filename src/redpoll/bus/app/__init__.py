"""Apps: decorated functions on a bus, with typed arguments and results; what `redpoll run` starts."""

from redpoll.bus.app.app import App
from redpoll.bus.app.calls import AppCall, AppStream
from redpoll.bus.app.middleware import Middleware, Proceed, Work
from redpoll.bus.app.shapes import GIVEN
from redpoll.bus.app.tasks import AppChain, AppGroup, AppTask
from redpoll.bus.app.working import Working

__all__ = [
    "GIVEN",
    "App",
    "AppCall",
    "AppChain",
    "AppGroup",
    "AppStream",
    "AppTask",
    "Middleware",
    "Proceed",
    "Work",
    "Working",
]
