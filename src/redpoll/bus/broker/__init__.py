"""A broker's decisions as data: what `memory://` and the hub both are."""

from redpoll.bus.broker.broker import Broker
from redpoll.bus.broker.limits import Limits
from redpoll.bus.broker.permissions import Permissions

__all__ = ["Broker", "Limits", "Permissions"]
