"""Names of nodes and of their hosts: parsing and checks."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from cryptography import x509
from cryptography.x509.oid import NameOID

from redpoll.errors import ConfigError

__all__ = ["NAME_LIMIT", "alternative_names", "check_file_name", "common_name", "shown_names"]

#: Maximum characters of a subject's common name (RFC 5280, A.1).
NAME_LIMIT = 64

# Names of the CA's own files, on case-insensitive file systems too.
_RESERVED = frozenset(("ca", "dh"))
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


def common_name(name: str) -> x509.Name:
    """Return the subject for a name.

    Raises:
        ConfigError: The name is empty, has more than 64 characters or unprintable ones.
    """
    if not isinstance(name, str):
        raise ConfigError("name", name, "is not a str")
    if not name.strip():
        raise ConfigError("name", name, "is empty")
    if len(name) > NAME_LIMIT:
        raise ConfigError("name", name, f"has {len(name)} characters, more than {NAME_LIMIT}")
    if not name.isprintable():
        raise ConfigError("name", name, "has unprintable characters")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def check_file_name(name: str) -> str:
    """Return the name of a node if it is valid as a file name too.

    Raises:
        ConfigError: It is not a valid file name on every system, or is one of the CA's own.
    """
    common_name(name)
    if not _FILE_NAME.fullmatch(name):
        hint = "use letters, digits, '.', '-' and '_', and pass the names of its host as `names`"
        raise ConfigError("name", name, "is not valid as a file name", hint)
    if name.lower() in _RESERVED:
        raise ConfigError("name", name, "is a file of the CA", "choose another name")
    return name


def alternative_names(names: Iterable[str]) -> x509.SubjectAlternativeName:
    """Return the names of a host as a certificate has them, without duplicates, in order.

    Args:
        names: DNS names, whose first label may be ``*``, and IP addresses.

    Raises:
        ConfigError: One is neither, or there is none.
    """
    if isinstance(names, str):
        raise ConfigError("names", names, "is a single name, not a list", f"pass [{names!r}]")
    read = dict.fromkeys(_read(name) for name in names)
    if not read:
        raise ConfigError("names", [], "is empty", "pass the DNS names and IP addresses that the node is dialled by")
    return x509.SubjectAlternativeName(list(read))


def shown_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names and IP addresses of a certificate as text."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in found if isinstance(name, x509.DNSName | x509.IPAddress))


def _read(name: str) -> x509.GeneralName:
    if not isinstance(name, str):
        raise ConfigError("names", name, "is not a str")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return x509.DNSName(_dns_name(name))
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise ConfigError("names", name, "has a zone", f"omit %{address.scope_id}")
    return x509.IPAddress(address)


def _dns_name(name: str) -> str:
    if not name.isascii():
        raise ConfigError("names", name, "is not ASCII", "use its ASCII form, which begins with xn--")
    labels = name.removeprefix("*.").split(".")
    if ":" in name or "/" in name or labels[-1].isdigit():
        hint = "write 10.0.0.7 or fd00::7, without brackets, port or network"
        raise ConfigError("names", name, "is neither an IP address nor a DNS name", hint)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        hint = "write worker.example.org or *.example.org, without a dot at the end"
        raise ConfigError("names", name, "is not a DNS name", hint)
    return name
