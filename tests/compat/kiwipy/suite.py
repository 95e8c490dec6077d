"""A plugin of pytest that runs kiwiPy's own tests, as its sdist 0.5.3 has them, on `redpoll.compat.kiwipy`.

``-p tests.compat.kiwipy.suite`` with REDPOLL_COMPAT_URL, the URL of an engine. Those tests are for kiwiPy 0.5.3 on tornado.
What differs from 0.9, whose names `redpoll.compat.kiwipy` has, is made up for here: arguments, methods that began without
being awaited, and the modules of the clients of RabbitMQ, topika and pika.
"""

from __future__ import annotations

import asyncio
import os
import sys
from types import ModuleType
from typing import Any

import kiwipy
from tornado.gen import convert_yielded

from redpoll.compat.kiwipy import (
    RmqCommunicator,
    RmqTaskPublisher,
    RmqThreadCommunicator,
    connect_robust,
    install,
)

URL = os.environ["REDPOLL_COMPAT_URL"]


class Threads(RmqThreadCommunicator):
    """Names that differ in 0.5.3; and the URL of the engine, in place of that of RabbitMQ."""

    stop = RmqThreadCommunicator.close

    @classmethod
    def connect(cls, connection_params: Any = None, connection_factory: object = None, **options: Any) -> Any:
        return super().connect({**connection_params, "url": URL}, **options)


class Publisher(RmqTaskPublisher):
    """Names that differ in 0.5.3."""

    def __init__(self, connection: Any, task_queue_name: str, **options: Any) -> None:
        super().__init__(connection, queue_name=task_queue_name, **options)


class Communicator(RmqCommunicator):
    """Verbs that begin when they are called, as coroutines of tornado do; those of 0.9 begin when they are awaited."""


def _begun(name: str) -> Any:
    method = getattr(RmqCommunicator, name)
    return lambda self, *args, **options: asyncio.ensure_future(method(self, *args, **options))


for _name in ("task_send", "rpc_send", "broadcast_send", "add_task_subscriber", "add_broadcast_subscriber"):
    setattr(Communicator, _name, _begun(_name))


def _module(name: str, **names: Any) -> ModuleType:
    made = sys.modules[name] = ModuleType(name)
    vars(made).update(names)
    return made


async def _connect(url: str, loop: object) -> Any:
    return await connect_robust(URL, loop=loop)


install()
rmq: Any = kiwipy.rmq
vars(rmq).update(RmqThreadCommunicator=Threads, RmqTaskPublisher=Publisher, RmqCommunicator=Communicator)
_module("topika", connect_robust=lambda *args, **options: convert_yielded(_connect(*args, **options)))
_module("pika", exceptions=_module("pika.exceptions", UnroutableError=kiwipy.UnroutableError))
