"""The current credentials of a node, which can be replaced while it runs."""

from __future__ import annotations

import asyncio
import ssl

from redpoll.address import Address
from redpoll.errors import ConfigError, TLSError
from redpoll.tls.certificate import Certificate, read_certificate
from redpoll.tls.contexts import Contexts, make_contexts
from redpoll.tls.failures import explained, not_pinned
from redpoll.tls.record import TLS

__all__ = ["Credentials", "TLSSession"]

_FINGERPRINT = "sha256:"
_IDENTITY = "identity:"


class TLSSession:
    """TLS state of one link, without I/O, and the checks of the other end.

    Attributes:
        address: Address of the other end.
        certificate: Its certificate, after `unknown_certificate`; None if it has none.
    """

    __slots__ = ("_contexts", "_name", "address", "certificate", "incoming", "object", "outgoing")

    def __init__(self, contexts: Contexts, address: Address, name: str | None) -> None:
        """Create the state before the TLS handshake.

        Args:
            contexts: The node's contexts when the link was made.
            address: Address of the other end.
            name: Name that was dialled; None for an incoming link.
        """
        self._contexts = contexts
        self.address = address
        self._name = name
        self.certificate: Certificate | None = None
        #: Bytes from the other end, and bytes for it.
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        context = contexts.server if name is None else contexts.client
        if context is None:
            raise ConfigError("tls", None, "incoming links require a certificate")
        checked = name if context.check_hostname else None
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_side=name is None, server_hostname=checked)

    def explained(self, error: ssl.SSLError) -> TLSError:
        """Return the TLSError that explains an error of OpenSSL."""
        contexts = self._contexts
        trusted = contexts.admitting if self._name is None else contexts.trusted
        return explained(error, self.address, name=self._name, trusted=trusted)

    def unknown_certificate(self) -> TLSError | None:
        """Read the other end's certificate, which a CA has signed; return why it is not accepted, or None."""
        # A context of the user's may accept any certificate: then no CA vouches for its contents.
        checked = self.object.context.verify_mode is not ssl.CERT_NONE
        der = self.object.getpeercert(binary_form=True) if checked else None
        try:
            self.certificate = read_certificate(der) if der else None
        except ValueError as error:
            failure = TLSError("its certificate cannot be read", self.address, "issue another one")
            failure.__cause__ = error
            return failure
        pins = [pin for pin in self._contexts.pins if pin.startswith(_FINGERPRINT)]
        if not pins:
            return None
        found = self.certificate.fingerprint if self.certificate is not None else None
        return None if found in pins else not_pinned(self.address, found)

    def unknown_identity(self, identity: bytes) -> TLSError | None:
        """Return why the node identity that the other end claims is not accepted, or None."""
        pins = [pin for pin in self._contexts.pins if pin.startswith(_IDENTITY)]
        found = f"{_IDENTITY}{identity.hex()}"
        return None if not pins or found in pins else not_pinned(self.address, found)

    @property
    def own_key(self) -> str | None:
        """Public key of this node's certificate; see `Contexts.own_key`."""
        return self._contexts.own_key

    @property
    def checks_names(self) -> bool:
        """True if dialled nodes need a certificate for the dialled address."""
        return self._contexts.client.check_hostname


class Credentials:
    """The contexts of one node."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    @classmethod
    async def load(cls, tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext]) -> Credentials:
        """Make the contexts in a thread, since that reads files.

        Raises:
            ConfigError: As for `make_contexts`.
        """
        return cls(await asyncio.to_thread(make_contexts, tls))

    async def reload(self, tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        """Use other credentials, or the changed files of the same, for new links.

        Raises:
            ConfigError: As for `make_contexts`, or there is no certificate any more; the previous contexts stay in use.
        """
        contexts = await asyncio.to_thread(make_contexts, tls)
        if contexts.server is None and self.can_listen:
            raise ConfigError("tls", tls, "the new credentials have no certificate, which a listening node requires")
        self._contexts = contexts

    @property
    def checks_names(self) -> bool:
        """True if dialled nodes need a certificate for the dialled name."""
        return self._contexts.client.check_hostname

    @property
    def can_listen(self) -> bool:
        """True if there is a certificate for incoming links."""
        return self._contexts.server is not None

    def accept(self, address: Address) -> TLSSession:
        """Create the session of an incoming link.

        Raises:
            ConfigError: This node has no certificate.
        """
        return TLSSession(self._contexts, address, None)

    def dial(self, address: Address, name: str) -> TLSSession:
        """Create the session of a link dialled by a name or an IP address, as certificates have them."""
        return TLSSession(self._contexts, address, name.partition("%")[0].removesuffix("."))
