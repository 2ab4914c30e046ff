"""Runs the coordinator's own lanes and scheduler with simulated workers, in simulated time."""
