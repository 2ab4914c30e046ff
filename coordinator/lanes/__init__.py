"""A verifier, the drafters that feed it, and the rounds of the sequences they share."""
