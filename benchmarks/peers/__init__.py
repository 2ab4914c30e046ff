"""Programs to run instead, on the same target and cores: `python -m benchmarks.peers`."""
