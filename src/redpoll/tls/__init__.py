"""TLS: the options of a node, the SSLContexts made from them, and explanations of errors."""

from redpoll.tls.certificate import Certificate
from redpoll.tls.contexts import Contexts, make_contexts
from redpoll.tls.credentials import Credentials
from redpoll.tls.failures import explained
from redpoll.tls.record import TLS

__all__ = ["TLS", "Certificate", "Contexts", "Credentials", "explained", "make_contexts"]
