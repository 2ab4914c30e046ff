"""Committed tokens of answers, and the queue that passes them to their reader."""
