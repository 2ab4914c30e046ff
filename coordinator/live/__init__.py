"""The live page: rounds and pools as they happen, for whoever opens it in a browser."""
