"""Large acknowledged messages over TLS, beside blocking sockets with TLS that send the same bytes."""

from dataclasses import replace

from benchmarks.encryption import CIPHER, certificates
from benchmarks.rows import large

ENCRYPTED = {"encrypted": True}

ROW = replace(
    large.ROW,
    name="tls_large",
    title="acknowledged messages of 64 KiB and 2 MiB over TLS, serializer buffer",
    notes=(
        *large.ROW.notes,
        f"Both by TLS 1.3 with {CIPHER} and the same certificates.",
    ),
    contenders=[replace(contender, options={**contender.options, **ENCRYPTED}) for contender in large.ROW.contenders],
    prepare=certificates,
)
