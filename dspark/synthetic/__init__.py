"""Workers without weights: given step times and acceptance probabilities, for capacity and
scheduling experiments."""
