"""Benchmarks of redpoll beside its peers: ``python -m benchmarks`` lists them."""
