"""Targets that come as one GGUF file: read, checked, and written as an ordinary checkpoint
folder."""
