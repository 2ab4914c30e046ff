"""The live page: rounds and pools as they happen, in a browser."""
