"""The node: peers, sending, requests, handlers, consumers, lifecycle."""

from redpoll.node.hooks import NodeEvents, PeerInfo
from redpoll.node.node import Node, Received

__all__ = ["Node", "NodeEvents", "PeerInfo", "Received"]
