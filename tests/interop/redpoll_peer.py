"""A redpoll node driven by JSON lines, as libchirp_peer.py drives one of libchirp: for a place where the test is not.

Of its commands there are `send` and `stop`, of its events all but `asked`. Beside them:

    {"do": "links", "id": 1}          the outcome has, as `links`, version and cipher of each link's TLS, null if it is plain
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from redpoll import TLS, Address, Message, Node


def say(**event: Any) -> None:
    """Write one event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def report(message: Message[bytes]) -> None:
    """The handler: say what came."""
    address = message.address
    assert isinstance(address, Address)
    assert message.remote_identity is not None
    say(
        event="received",
        identity=message.identity.hex(),
        serial=0,
        header=message.header.hex(),
        data=message.data.hex(),
        address=address.host,
        port=address.port,
        remote_identity=message.remote_identity.hex(),
        has_slot=True,
    )


async def send(node: Node[bytes], command: dict[str, Any]) -> None:
    """Send, and say how that ended."""
    address = Address("tcp", command["address"], command["port"])
    message = Message(bytes.fromhex(command["data"]), address, header=bytes.fromhex(command["header"]))
    try:
        await node.send(message)
    except Exception as error:  # noqa: BLE001  # the test judges it, whatever it is
        text = f"{error} <- {type(error.__cause__).__name__}: {error.__cause__}"
        say(event="failed", id=command["id"], error=type(error).__name__, code=None, text=text)
    else:
        say(event="done", id=command["id"])


def links(node: Node[bytes]) -> list[list[str] | None]:
    """What each link is encrypted with."""
    found: list[list[str] | None] = []
    for connection in node._peers.connections:
        assert connection.transport is not None
        tls = connection.transport.get_extra_info("ssl_object")
        found.append([tls.version(), tls.cipher()[0]] if tls is not None else None)
    return found


async def run(options: argparse.Namespace) -> None:
    """Run the node until it is told to stop, or nobody is there to tell it."""
    encryption: dict[str, Any] = {"encryption": False}
    if options.certificate is not None:
        encryption = {"tls": TLS(certificate=options.certificate, dh_params=options.dh)}
    loop = asyncio.get_running_loop()
    node = Node(report, host=options.host, port=options.port, timeout=options.timeout, **encryption)
    async with node, asyncio.TaskGroup() as group:
        say(event="ready", identity=node.identity.hex())
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            match command["do"]:
                case "send":
                    group.create_task(send(node, command))
                case "links":
                    say(event="done", id=command["id"], links=links(node))
                case "stop":
                    say(event="done", id=command["id"])
                    break


def main() -> None:
    """Run on the event loop that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], required=True)
    parser.add_argument("--certificate", default=None)
    parser.add_argument("--dh", default=None)
    options = parser.parse_args()
    factory = None
    if options.loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run(options))


if __name__ == "__main__":
    main()
