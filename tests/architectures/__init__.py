"""Every family of targets that the installed library generates with, tiny and random."""
