"""Targets in a GGUF file: reading, checking, and writing them as an ordinary checkpoint folder."""
