"""What channels and servers are made with."""

from __future__ import annotations

from redpoll.nq.grpc.options import LARGEST, client_options, server_options


def test_each_end_takes_what_the_other_may_send() -> None:
    """Both ends have the same limit of messages, and refer to no option of a node for it."""
    for options in (dict(client_options()), dict(server_options())):
        assert options["grpc.max_send_message_length"] == options["grpc.max_receive_message_length"] == LARGEST


def test_nothing_is_shared_or_tried_again() -> None:
    """A channel has connections of its own and dials once; a port has one server."""
    client = dict(client_options())
    assert client["grpc.use_local_subchannel_pool"] == 1
    assert client["grpc.enable_retries"] == 0
    assert dict(server_options())["grpc.so_reuseport"] == 0
