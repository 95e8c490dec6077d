"""A libchirp node driven by JSON lines: the real peer of the interoperability tests.

The tests run this file in its own process, with an interpreter that has libchirp. It imports nothing of this
project, so that what it says of the wire is libchirp's word alone.

Standard input, one JSON object a line; `id` is the caller's and comes back in the outcome:

    {"do": "send",    "id": 1, "address": "127.0.0.1", "port": 2998, "data": HEX, "header": HEX}
    {"do": "request", "id": 2, ...}               the outcome carries the answer
    {"do": "resend",  "id": 3, "number": 0, ...}  send a received message back, changed: libchirp's way to reply
    {"do": "release", "id": 4, "number": 0}       end a message that --on-message hold has kept
    {"do": "stop",    "id": 5}                    stop the node and end; so does the end of standard input

Standard output, one JSON object a line:

    {"event": "ready", "identity": HEX}
    {"event": "received", "number": N, "identity": HEX, "serial": N, "header": HEX, "data": HEX, "address": TEXT,
     "port": N, "remote_identity": HEX, "has_slot": BOOL}
    {"event": "asked"}                            an answer to the request may come now
    {"event": "done", "id": N, ...}  or  {"event": "failed", "id": N, "error": TYPE, "code": N, "text": TEXT}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import sys
import threading
from typing import IO, Any

import libchirp
import libchirp.asyncio
import libchirp.queue

output_lock = threading.Lock()


def say(**event: Any) -> None:
    """Write one event."""
    line = json.dumps(event) + "\n"
    with output_lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def describe(message: Any) -> dict[str, Any]:
    """The fields of a received message."""
    return {
        "identity": message.identity.hex(),
        "serial": message.serial,
        "header": message.header.hex(),
        "data": message.data.hex(),
        "address": message.address,
        "port": message.port,
        "remote_identity": message.remote_identity.hex(),
        "has_slot": message.has_slot,
    }


def fill(message: Any, command: dict[str, Any]) -> Any:
    """Set what the command gives; the rest of the message stays as it is."""
    if "address" in command:
        message.address = command["address"]
        message.port = command["port"]
    if "data" in command:
        message.data = bytes.fromhex(command["data"])
    if "header" in command:
        message.header = bytes.fromhex(command["header"])
    return message


def tell_outcome(number: int, future: Any, *, answered: bool = False) -> None:
    """Report how a future ended, once it has."""

    def tell(done: Any) -> None:
        try:
            value = done.result()
        except Exception as error:  # noqa: BLE001  # the test judges it, whatever it is
            say(
                event="failed",
                id=number,
                error=type(error).__name__,
                code=getattr(error, "ecode", None),
                text=str(error),
            )
        else:
            say(event="done", id=number, **({"answer": describe(value)} if answered else {}))

    future.add_done_callback(tell)


class Inbox:
    """Received messages by number: reported, and kept for `release` and `resend`."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._lock = threading.Lock()

    def report(self, message: Any) -> None:
        with self._lock:
            number = len(self.messages)
            self.messages.append(message)
        say(event="received", number=number, **describe(message))


class HandlerFaultError(Exception):
    """What a handler raises under --on-message raise."""


def obey(chirp: Any, message_type: Any, inbox: Inbox, command: dict[str, Any]) -> None:
    """Carry out one command other than `stop`. Libchirp's two interfaces differ only in the kind of future."""
    number = command["id"]
    match command["do"]:
        case "send":
            tell_outcome(number, chirp.send(fill(message_type(), command)))
        case "request":
            tell_outcome(number, chirp.request(fill(message_type(), command)), answered=True)
            # Behind the timer without which libchirp cannot take an answer: one that comes sooner is lost there.
            chirp.loop.call_soon(say, event="asked")
        case "resend":
            tell_outcome(number, chirp.send(fill(inbox.messages[command["number"]], command)))
        case "release":
            tell_outcome(number, inbox.messages[command["number"]].release())
        case unknown:
            raise ValueError(f"unknown command {unknown!r}")


def run_asyncio(config: libchirp.Config, on_message: str, commands: IO[str]) -> None:
    """Drive libchirp.asyncio; a thread hands the commands to the loop."""
    inbox = Inbox()

    class Node(libchirp.asyncio.Chirp):  # type: ignore[misc]  # libchirp is untyped
        async def handler(self, message: Any) -> None:
            inbox.report(message)
            if on_message == "reply":
                await self.send(message)
            elif on_message == "raise":
                raise HandlerFaultError

    async def main() -> None:
        loop = asyncio.get_running_loop()
        node = Node(uv_loop, config, loop)
        lines: asyncio.Queue[str] = asyncio.Queue()

        def read() -> None:
            for line in commands:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

        threading.Thread(target=read, daemon=True).start()
        say(event="ready", identity=node.identity().hex())
        while line := await lines.get():
            command = json.loads(line)
            if command["do"] == "stop":
                # Blocking, as libchirp's asyncio interface has it.
                node.stop()
                say(event="done", id=command["id"])
                return
            obey(node, libchirp.asyncio.Message, inbox, command)
        node.stop()

    uv_loop = libchirp.Loop()
    try:
        asyncio.run(main())
    finally:
        uv_loop.stop()


def run_queue(config: libchirp.Config, on_message: str, commands: IO[str]) -> None:
    """Drive libchirp.queue; a thread takes what arrives, the main thread reads the commands."""
    inbox = Inbox()
    ended = threading.Event()

    def consume(node: Any) -> None:
        while not ended.is_set():
            try:
                message = node.get(timeout=0.05)
            except queue.Empty:
                continue
            inbox.report(message)
            if on_message == "reply":
                node.send(message)

    uv_loop = libchirp.Loop()
    try:
        node = libchirp.queue.Chirp(uv_loop, config)
        consumer = threading.Thread(target=consume, args=(node,), daemon=True)
        consumer.start()
        say(event="ready", identity=node.identity().hex())
        last: dict[str, Any] = {}
        for line in commands:
            last = json.loads(line)
            if last["do"] == "stop":
                break
            obey(node, libchirp.queue.Message, inbox, last)
        ended.set()
        consumer.join()
        node.stop()
        if last.get("do") == "stop":
            say(event="done", id=last["id"])
    finally:
        ended.set()
        uv_loop.stop()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--api", choices=["asyncio", "queue"], default="asyncio")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=5.0)
    parser.add_argument("--reuse-time", type=float, default=30.0)
    parser.add_argument("--max-message", type=int, default=None)
    parser.add_argument("--on-message", choices=["release", "hold", "reply", "raise"], default="release")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--certificate", default=None)
    parser.add_argument("--dh", default=None)
    arguments = parser.parse_args()
    if arguments.api == "queue" and arguments.on_message == "raise":
        parser.error("the queue interface has no handler that could raise")
    return arguments


def configure(arguments: argparse.Namespace) -> libchirp.Config:
    """The configuration: plaintext unless there is a certificate, bound to loopback unless it is said otherwise."""
    config = libchirp.Config()
    config.DISABLE_ENCRYPTION = arguments.certificate is None
    if arguments.certificate is not None:
        config.CERT_CHAIN_PEM = arguments.certificate
        config.DH_PARAMS_PEM = arguments.dh
    config.BIND_V4 = arguments.host
    config.BIND_V6 = "::1"
    config.PORT = arguments.port
    config.SYNCHRONOUS = arguments.mode == "sync"
    config.MAX_SLOTS = arguments.slots
    config.TIMEOUT = arguments.timeout
    config.REUSE_TIME = arguments.reuse_time
    config.AUTO_RELEASE = arguments.on_message != "hold"
    if arguments.max_message is not None:
        config.MAX_MSG_SIZE = arguments.max_message
    return config


def main() -> None:
    arguments = parse_arguments()
    run = run_asyncio if arguments.api == "asyncio" else run_queue
    run(configure(arguments), arguments.on_message, sys.stdin)


if __name__ == "__main__":
    main()
