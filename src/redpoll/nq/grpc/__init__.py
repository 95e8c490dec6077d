"""The queue facade over gRPC."""
