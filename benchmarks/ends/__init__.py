"""The two ends of every contender: each module runs as one process under the driver."""
