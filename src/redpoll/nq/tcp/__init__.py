"""Over TCP, or TLS."""
