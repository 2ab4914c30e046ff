"""Measurements and long checks of the whole system. Each is a program: `python -m benchmarks.NAME
--help`."""
