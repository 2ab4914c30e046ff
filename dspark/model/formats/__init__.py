"""Checkpoint formats: whatever a drafter's folder looks like, loaders see the released format."""
