"""Shared kernel of the DSpark serving system: nouns, wire, decoding rule, models, process harness."""
