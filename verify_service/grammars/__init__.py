"""Grammars of constrained answers: compiled in another process, matched during passes."""
