"""The node on the loop: what a fork leaves to the child."""

from __future__ import annotations

from tests.blocking.support import run_program

INHERITED = """
import os, socket, sys
from redpoll import Message, PeerLost
from redpoll.blocking import QueueNode
node, sender = QueueNode(port=0), QueueNode(listen=False)
node.start()
sender.start()
sender.ready(node.address)
lost = []
sender.events.peer_lost = lambda peer, error: lost.append(error)
port = node.address.port
go_on, end = os.pipe()
up, begun = os.pipe()
child = os.fork()
if not child:
    os.close(end)
    os.write(begun, b"1")
    os.read(go_on, 1)  # until the parent is done with it
    os._exit(0)
os.close(go_on)
os.read(up, 1)  # the child is there
node.stop()
with socket.socket() as listener:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    try:
        sender.check(f"127.0.0.1:{port}", timeout=0.1)
    finally:
        connection, _ = listener.accept()
        connection.close()
sender.stop()
os.close(end)
print(os.waitpid(child, 0)[1], "free")
"""


def test_a_child_keeps_no_socket_of_its_parents() -> None:
    """While a forked child lives the parent's port is free again when its node stops."""
    done = run_program(INHERITED, "-W", "ignore::DeprecationWarning")
    assert done.stdout == "0 free\n", done.stderr
