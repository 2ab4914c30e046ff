"""Tokens per second of processor time of a coordinator: `python -m benchmarks.coordinator_rate`."""
