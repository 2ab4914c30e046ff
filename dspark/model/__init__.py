"""Networks: target with taps, context projection, block drafters and their heads."""
