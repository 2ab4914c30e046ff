"""Random checkpoints in the exact shapes of released drafters, and thin ones of them."""
