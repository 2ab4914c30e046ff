"""What parts bring to accepted lengths and speed, by leaving them out: `python -m
benchmarks.ablations`."""
