"""Access to paho-mqtt, the extra that this protocol needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redpoll.errors import UsageError

if TYPE_CHECKING:
    from paho.mqtt.client import Client

__all__ = ["make_client"]


def make_client(name: str = "") -> Client:
    """Return an unconnected client of paho.

    Args:
        name: Its MQTT client id.

    Raises:
        UsageError: paho-mqtt is not installed.
    """
    try:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion
    except ImportError as error:
        raise UsageError("the protocol MQTT needs paho-mqtt", "pip install 'redpoll[mqtt]'") from error
    return Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=True)
