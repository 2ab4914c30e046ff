"""Networks and checkpoints: targets with taps, context projections, drafters and their heads."""
