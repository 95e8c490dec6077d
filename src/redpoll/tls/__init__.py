"""Encryption: which certificates a node has and wants, the contexts made of them, and what goes wrong, in words."""

from redpoll.tls.certificate import Certificate
from redpoll.tls.contexts import Contexts, make_contexts
from redpoll.tls.credentials import Credentials
from redpoll.tls.failures import explained
from redpoll.tls.record import TLS

__all__ = ["TLS", "Certificate", "Contexts", "Credentials", "explained", "make_contexts"]
