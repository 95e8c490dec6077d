"""The two classes of the old module: `ZMQ` of its first versions, `Zmq` of its last ones."""

from __future__ import annotations

from typing import Final

from redpoll.errors import UsageError
from redpoll.wiring.names import Gap
from redpoll.wiring.zmq.constants import MESSAGE_DATA, MESSAGE_GAP, STYLE_LOAD_BALANCING, UNSET, either
from redpoll.wiring.zmq.outbox import Data
from redpoll.wiring.zmq.wires import Wires

__all__ = ["ZMQ", "Zmq"]

#: Result of `Zmq.receive` without a message.
_NOTHING: Final = (0, b"", 0)

_NOTIFICATIONS: Final = (MESSAGE_DATA, MESSAGE_GAP, MESSAGE_DATA | MESSAGE_GAP)


class ZMQ(Wires):
    """The class of the first versions, with `send` and `receive` of bytes; exchanges distribute.

    For its arguments, and for `create_exchange`, `create_queue`, `bind` and `close`, see `Wires`.
    """

    def send(
        self,
        exchange_id: int = UNSET,
        msg: Data = UNSET,
        *,
        exchange: int = UNSET,
        py_message: Data = UNSET,
    ) -> None:
        """Send a message to an exchange; wait while a bound queue has no room.

        Args:
            exchange_id: The number that `create_exchange` returned.
            msg: The message, which is copied unless it is `bytes`.
            exchange: `exchange_id`, in the later generation.
            py_message: `msg`, in the later generation.

        When the call returns, the message was handed to the loop thread. Without a bound queue it is dropped, or, if the
        exchange balances, waits for one. Ctrl-C ends the wait; the message was then not sent, or had just been sent.

        Raises:
            Closed: It is closed.
            UsageError: There is no such exchange, or it is no message.
            MessageTooLarge: It is above `Config.max_message_size`.
        """
        outbox = self._outboxes.get(exchange_id)
        if outbox is not None and py_message is UNSET and outbox.takes(msg):
            outbox.post(msg)
        else:
            number = either("exchange_id", exchange_id, "exchange", exchange)
            self._resident.send(number, either("msg", msg, "py_message", py_message))

    def receive(self, *, timeout: float | None = None) -> bytes:
        """Wait for the next message of any queue of this object; queues take turns.

        Args:
            timeout: Seconds; None (default) is no limit.

        Any number of threads may wait; each message goes to one of them. Ctrl-C ends the wait, and loses no message.

        Raises:
            TimeoutError: No message arrived in time.
            Closed: It is closed.
        """
        try:
            for message in self._pop:
                return message  # type: ignore[no-any-return]  # what the loop gave
        except IndexError:
            pass
        return self._resident.receive(timeout)  # type: ignore[no-any-return]  # as above


class Zmq(Wires):
    """The class of the last versions: exchanges balance, and messages say of which queue they are.

    For its arguments, and for `create_exchange`, `create_queue`, `bind` and `close`, see `Wires`.
    """

    _style = STYLE_LOAD_BALANCING
    _gaps = True

    def send(
        self,
        exchange: int = UNSET,
        py_message: Data = UNSET,
        block: bool | int = True,
        *,
        exchange_id: int = UNSET,
        msg: Data = UNSET,
    ) -> int:
        """Send a message to an exchange.

        Args:
            exchange: The number that `create_exchange` returned.
            py_message: The message, which is copied unless it is `bytes`.
            block: Wait for room (default), and for a queue if the exchange balances.
            exchange_id: `exchange`, in the earlier generation.
            msg: `py_message`, in the earlier generation.

        Returns:
            1; or 0 if there was no room, without `block`: it was not sent.

        Otherwise as `ZMQ.send`.

        Raises:
            Closed: It is closed.
            UsageError: There is no such exchange, or it is no message.
            MessageTooLarge: It is above `Config.max_message_size`.
        """
        outbox = self._outboxes.get(exchange)
        if outbox is not None and msg is UNSET and outbox.takes(py_message):
            outbox.post(py_message)
            return 1
        number = either("exchange", exchange, "exchange_id", exchange_id)
        message = either("py_message", py_message, "msg", msg)
        return 1 if self._resident.send(number, message, wait=bool(block)) else 0

    def receive(self, block: bool | int = True, *, timeout: float | None = None) -> tuple[int, bytes | Gap, int]:
        """Return the next message of any queue of this object; queues take turns.

        Args:
            block: Wait for a message (default).
            timeout: Seconds to wait; None (default) is no limit.

        Returns:
            The number of the queue, the message, and `MESSAGE_DATA`. In the place of missing messages, if `mask` requested
            it: the number of the queue, a `redpoll.wiring.Gap`, with the exchange and the number of messages, and
            `MESSAGE_GAP`. If there is no message, without `block`: 0, b"" and 0.

        Otherwise as `ZMQ.receive`.

        Raises:
            TimeoutError: None came in time.
            Closed: It is closed.
        """
        try:
            for found in self._pop:
                return found  # type: ignore[no-any-return]  # what the loop gave
        except IndexError:
            pass
        if block:
            return self._resident.receive(timeout)  # type: ignore[no-any-return]  # as above
        found = self._resident.look()
        return _NOTHING if found is None else found

    def mask(self, notifications: int) -> None:
        """Select the kinds of results of `receive`.

        Args:
            notifications: `MESSAGE_DATA`, messages only, or ``MESSAGE_DATA | MESSAGE_GAP``, also gaps.

        Raises:
            UsageError: It is neither.
        """
        if notifications not in _NOTIFICATIONS or isinstance(notifications, bool):
            raise UsageError(
                f"there are no notifications {notifications!r}", "MESSAGE_DATA, or MESSAGE_DATA | MESSAGE_GAP"
            )
        self._resident.mask(bool(notifications & MESSAGE_GAP))
