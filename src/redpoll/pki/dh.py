"""Diffie-Hellman parameters, for peers limited to TLS 1.2 without elliptic curves, such as libchirp."""

from __future__ import annotations

from redpoll.errors import ConfigError

__all__ = ["dh_parameters"]

# RFC 7919, A.1 and A.2: well-known groups need no generation, and OpenSSL uses short exponents with them.
_GROUPS = {
    2048: b"""\
-----BEGIN DH PARAMETERS-----
MIIBCAKCAQEA//////////+t+FRYortKmq/cViAnPTzx2LnFg84tNpWp4TZBFGQz
+8yTnc4kmz75fS/jY2MMddj2gbICrsRhetPfHtXV/WVhJDP1H18GbtCFY2VVPe0a
87VXE15/V8k1mE8McODmi3fipona8+/och3xWKE2rec1MKzKT0g6eXq8CrGCsyT7
YdEIqUuyyOP7uWrat2DX9GgdT0Kj3jlN9K5W7edjcrsZCwenyO4KbXCeAvzhzffi
7MA0BM0oNC9hkXL+nOmFg/+OTxIy7vKBg8P+OxtMb61zO7X8vC7CIAXFjvGDfRaD
ssbzSibBsu/6iGtCOGEoXJf//////////wIBAg==
-----END DH PARAMETERS-----
""",
    3072: b"""\
-----BEGIN DH PARAMETERS-----
MIIBiAKCAYEA//////////+t+FRYortKmq/cViAnPTzx2LnFg84tNpWp4TZBFGQz
+8yTnc4kmz75fS/jY2MMddj2gbICrsRhetPfHtXV/WVhJDP1H18GbtCFY2VVPe0a
87VXE15/V8k1mE8McODmi3fipona8+/och3xWKE2rec1MKzKT0g6eXq8CrGCsyT7
YdEIqUuyyOP7uWrat2DX9GgdT0Kj3jlN9K5W7edjcrsZCwenyO4KbXCeAvzhzffi
7MA0BM0oNC9hkXL+nOmFg/+OTxIy7vKBg8P+OxtMb61zO7X8vC7CIAXFjvGDfRaD
ssbzSibBsu/6iGtCOGEfz9zeNVs7ZRkDW7w09N75nAI4YbRvydbmyQd62R0mkff3
7lmMsPrBhtkcrv4TCYUTknC0EwyTvEN5RPT9RFLi103TZPLiHnH1S/9croKrnJ32
nuhtK8UiNjoNq8Uhl5sN6todv5pC1cRITgq80Gv6U93vPBsg7j/VnXwl5B0rZsYu
N///////////AgEC
-----END DH PARAMETERS-----
""",
}


def dh_parameters(bits: int = 3072) -> bytes:
    """Return standard Diffie-Hellman parameters in PEM, for `SSLContext.load_dh_params` and libchirp's DH_PARAMS_PEM.

    They are the group ffdhe2048 or ffdhe3072 of RFC 7919, and not secret.

    Args:
        bits: 2048 or 3072.

    Raises:
        ConfigError: It is neither.
    """
    try:
        return _GROUPS[bits]
    except KeyError as error:
        raise ConfigError("bits", bits, "has no standard group", "choose 2048 or 3072") from error
