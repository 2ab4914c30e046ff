"""Every family of targets that the installed library knows how to generate with, tiny and
random."""
