"""Cost and correctness of answers in a form: `python -m benchmarks.forms`."""
