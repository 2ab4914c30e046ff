"""What was committed, and its way to whoever reads it."""
