"""Other programs on the same target and cores, beside this one: `python -m benchmarks.peers`."""
