"""What parts bring: to accepted lengths, and of the kernels for CPUs: `python -m
benchmarks.ablations`."""
