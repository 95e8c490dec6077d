"""What `redpoll` is in the pages of the documentation: asks a server of tests/cli/prepared.py for a process, and is it.

Standard input, output and error are that process', signals are passed on to it, and its end is the end of this one. It runs
with `-I -S` and imports nothing that Python has not imported by then, so that it takes a hundredth of a second.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import struct
import sys

_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)


def main() -> None:
    """Do what the command line says behind the path of the server's socket."""
    early: list[int] = []
    for number in _SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda number, _: early.append(number))
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect(sys.argv[1])
    arguments = [os.fsencode(each) for each in sys.argv[2:]]
    environment = [name + b"=" + value for name, value in os.environb.items()]
    request = b"\0".join([os.getcwdb(), b"%d" % len(arguments), *arguments, *environment])  # noqa: PTH109 - see above
    server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))])
    child = int(server.recv(32))
    for number in _SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda number, _: os.kill(child, number))
    for number in early:
        os.kill(child, number)
    status = int(server.recv(32))
    if os.WIFSIGNALED(status):
        _signal.signal(os.WTERMSIG(status), _signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


main()
