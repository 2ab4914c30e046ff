"""Sequences that wait for a lane, and the order in which they enter."""
