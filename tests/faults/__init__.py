"""Processes that die or hang, messages that get lost, and what has to hold all the same."""
