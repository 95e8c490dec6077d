"""What a node encrypts its links with: the contexts of now, which may be changed while it runs."""

from __future__ import annotations

import asyncio
import ssl

from redpoll.address import Address
from redpoll.errors import ConfigError, TLSError
from redpoll.tls.certificate import Certificate, read_certificate
from redpoll.tls.contexts import Contexts, make_contexts
from redpoll.tls.failures import explained, not_pinned
from redpoll.tls.record import TLS

__all__ = ["Credentials", "Session"]

_FINGERPRINT = "sha256:"
_IDENTITY = "identity:"


class Session:
    """One link's TLS without its bytes: whom it may lead to.

    Attributes:
        address: The other end.
        certificate: What it showed, once `unknown_certificate` was asked; None if it has none.
    """

    __slots__ = ("_contexts", "_name", "address", "certificate", "incoming", "object", "outgoing")

    def __init__(self, contexts: Contexts, address: Address, name: str | None) -> None:
        """Begin.

        Args:
            contexts: Those of the node, when the link was made.
            address: The other end.
            name: What it was dialled by; None if it dialled.
        """
        self._contexts = contexts
        self.address = address
        self._name = name
        self.certificate: Certificate | None = None
        #: What came from the other end, and what is to go there.
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        context = contexts.server if name is None else contexts.client
        if context is None:
            raise ConfigError("tls", None, "there is no certificate to show who dials")
        checked = name if context.check_hostname else None
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_side=name is None, server_hostname=checked)

    def explained(self, error: ssl.SSLError) -> TLSError:
        """Say what an error of OpenSSL means."""
        contexts = self._contexts
        trusted = contexts.admitting if self._name is None else contexts.trusted
        return explained(error, self.address, name=self._name, trusted=trusted)

    def unknown_certificate(self) -> TLSError | None:
        """Read the other end's certificate, which a CA has signed; say why it is not accepted, None if it is."""
        # A context of the user's may take any: then nobody answers for what is in it.
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
        """Say why the node identity that the other end claims is not accepted; None if it is."""
        pins = [pin for pin in self._contexts.pins if pin.startswith(_IDENTITY)]
        found = f"{_IDENTITY}{identity.hex()}"
        return None if not pins or found in pins else not_pinned(self.address, found)

    @property
    def own_key(self) -> str | None:
        """The public key that this node showed; see `Contexts.own_key`."""
        return self._contexts.own_key

    @property
    def checks_names(self) -> bool:
        """Whether an address leads only to who was dialled there, and showed a certificate for it."""
        return self._contexts.client.check_hostname


class Credentials:
    """The contexts of one node."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    @classmethod
    async def load(cls, tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext]) -> Credentials:
        """Make them in a thread, since files are read.

        Raises:
            ConfigError: As for `make_contexts`.
        """
        return cls(await asyncio.to_thread(make_contexts, tls))

    async def reload(self, tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        """Use others, or the same files as they are now, for links that are made from now on.

        Raises:
            ConfigError: As for `make_contexts`, or who could show a certificate could not any more; what was used before
                stays.
        """
        contexts = await asyncio.to_thread(make_contexts, tls)
        if contexts.server is None and self.can_listen:
            raise ConfigError("tls", tls, "there is no certificate in the place of the one before")
        self._contexts = contexts

    @property
    def checks_names(self) -> bool:
        """Whether whoever is dialled shows a certificate for the name by which it is."""
        return self._contexts.client.check_hostname

    @property
    def can_listen(self) -> bool:
        """Whether there is a certificate to show who dials."""
        return self._contexts.server is not None

    def accept(self, address: Address) -> Session:
        """Begin the session of a link that came in.

        Raises:
            ConfigError: There is no certificate to show it.
        """
        return Session(self._contexts, address, None)

    def dial(self, address: Address, name: str) -> Session:
        """Begin the session of a link that was dialled by a name or IP address, as certificates have them."""
        return Session(self._contexts, address, name.partition("%")[0].removesuffix("."))
