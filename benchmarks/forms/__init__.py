"""What answers in a form cost and whether they are right: `python -m benchmarks.forms`."""
