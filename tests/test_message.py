"""Messages as they are made: immutable, addressed, with an identity of their own."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from redpoll import Address, MessageTooLarge, UsageError
from redpoll.message import IDENTITY_SIZE, MAX_HEADER_SIZE, Message, identity_prefix
from tests.blocking.support import run_program


def test_a_message_carries_what_it_was_given() -> None:
    """Data, address and header are those given; the header is empty and the address None by default."""
    message = Message(b"data", "127.0.0.1:2998", header=b"header")
    assert (message.data, message.header) == (b"data", b"header")
    assert message.address == Address("tcp", "127.0.0.1", 2998)
    bare = Message({"any": "object"})
    assert (bare.data, bare.header, bare.address) == ({"any": "object"}, b"", None)


@pytest.mark.parametrize("text", ["127.0.0.1:2998", "[::1]:2998", "localhost:80", "unix:/run/x", "inproc:name"])
def test_an_address_may_be_text(text: str) -> None:
    """An address given as text is read, and reads the same again."""
    address = Message(b"", text).address
    assert isinstance(address, Address)
    assert str(address) == text


def test_an_address_object_is_taken_as_it_is() -> None:
    """An Address is kept, not parsed again."""
    address = Address("tcp", "::1", 5)
    assert Message(b"", address).address is address


@pytest.mark.parametrize("name", ["data", "header", "identity", "address", "remote_identity", "other"])
def test_a_message_is_immutable(name: str) -> None:
    """No attribute of a message can be set."""
    message = Message(b"data")
    with pytest.raises(AttributeError):
        setattr(message, name, b"")


def test_each_message_has_an_identity_of_its_own() -> None:
    """An identity is 16 bytes, and no two messages share one."""
    messages = [Message(b"") for _ in range(1000)]
    identities = {message.identity for message in messages}
    assert len(identities) == 1000
    assert {len(identity) for identity in identities} == {IDENTITY_SIZE} == {16}
    assert {identity[:8] for identity in identities} == {identity_prefix()}
    assert messages[0].identity == messages[0].identity


FORKED = """
import os
from redpoll import Message

def identities():
    return {Message(b"").identity for _ in range(10)}

ours = identities()
reading, writing = os.pipe()
child = os.fork()
if not child:
    os.write(writing, b"".join(identities()))
    os._exit(0)
os.waitpid(child, 0)
theirs = os.read(reading, 160)
ours |= identities()
print(len(theirs), len(ours), len(ours & {theirs[at : at + 16] for at in range(0, 160, 16)}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_process_makes_other_identities() -> None:
    """After a fork both processes go on with identities that the other does not make."""
    done = run_program(FORKED)
    assert done.stdout == "160 20 0\n", done.stderr


def test_a_message_made_here_has_no_remote_identity() -> None:
    """Only a received message tells of a node that it came from."""
    assert Message(b"").remote_identity is None


@pytest.mark.parametrize("header", [bytearray(b"abc"), memoryview(b"abc")])
def test_a_header_may_be_any_bytes(header: Any) -> None:
    """A header is kept as bytes of its own, whatever buffer it was given as."""
    message = Message(b"", header=header)
    assert type(message.header) is bytes
    assert message.header == b"abc"
    if isinstance(header, bytearray):
        header[:] = b"xyz"
        assert message.header == b"abc"


def test_an_empty_buffer_is_an_empty_header() -> None:
    """An empty bytearray is a header of no bytes."""
    assert Message(b"", header=bytearray()).header == b""  # type: ignore[arg-type,unused-ignore]


def test_a_header_has_its_longest_size() -> None:
    """65,535 bytes of header are carried, one more is MessageTooLarge, and says so."""
    assert len(Message(b"", header=bytes(MAX_HEADER_SIZE)).header) == 65_535
    with pytest.raises(MessageTooLarge) as caught:
        Message(b"", header=bytes(MAX_HEADER_SIZE + 1))
    assert str(caught.value) == "header of 65536 bytes is over the limit of 65535 (carry it in the data)"
    assert (caught.value.what, caught.value.size, caught.value.limit) == ("header", 65_536, 65_535)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("text", "a header must be bytes, not str (encode text first: header=text.encode())"),
        ("", "a header must be bytes, not str (encode text first: header=text.encode())"),
        (7, "a header must be bytes, not int"),
        (None, "a header must be bytes, not NoneType"),
        ([1], "a header must be bytes, not list"),
    ],
)
def test_a_header_that_is_no_bytes_is_refused(header: Any, text: str) -> None:
    """A header of another type is a UsageError that names the type."""
    with pytest.raises(UsageError) as caught:
        Message(b"", header=header)
    assert str(caught.value) == text


@pytest.mark.parametrize("address", ["", "nohost", "127.0.0.1:port", "127.0.0.1:70000", 7, b"127.0.0.1:1"])
def test_a_bad_address_is_refused(address: Any) -> None:
    """An address that cannot be read is a UsageError when the message is made, not when it is sent."""
    with pytest.raises(UsageError):
        Message(b"", address)


def test_a_reply_keeps_identity_and_address() -> None:
    """A reply has the identity of what it answers and goes where that points, with data and header of its own."""
    message = Message(b"question", "127.0.0.1:1", header=b"h")
    reply = message.reply({"answer": 1}, header=b"mine")
    assert reply.identity == message.identity
    assert reply.address == message.address
    assert (reply.data, reply.header) == ({"answer": 1}, b"mine")
    assert message.reply(b"").header == b""


def test_a_forwarded_message_keeps_identity_data_and_header() -> None:
    """Forwarding changes the address alone, and the address may be text."""
    message = Message(b"data", "127.0.0.1:1", header=b"h")
    onward = message.forward("127.0.0.1:2")
    assert (onward.identity, onward.data, onward.header) == (message.identity, b"data", b"h")
    assert onward.address == Address("tcp", "127.0.0.1", 2)
    assert message.address == Address("tcp", "127.0.0.1", 1)


def test_its_text_shows_no_payload() -> None:
    """The representation tells size, address and the end of the identity, and nothing of the data."""
    message = Message(b"secret", "127.0.0.1:1")
    assert repr(message) == f"<Message {message.identity.hex()[-8:]} of 6 bytes, address 127.0.0.1:1>"
    assert repr(Message({"secret": 1})).endswith("of an object, address None>")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))])
@pytest.mark.parametrize("derive", [lambda message: message, lambda message: message.reply(b"r", header=b"h")])
def test_a_message_can_be_copied_and_pickled(again: Any, derive: Any) -> None:
    """A copy is the same message: identity, data, header and address."""
    message = derive(Message(b"data", "[::1]:9", header=b"h"))
    other = again(message)
    assert isinstance(other, Message)
    assert (other.identity, other.data, other.header, other.address) == (
        message.identity,
        message.data,
        message.header,
        message.address,
    )


def test_a_pickled_message_keeps_its_identity_in_another_process() -> None:
    """A message that was pickled has the same identity where it is read, though that process makes others."""
    message = Message(b"data")
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).identity.hex())"
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(message), capture_output=True, check=True)
    assert done.stdout.decode().strip() == message.identity.hex()
