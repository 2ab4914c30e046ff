"""Builds that break one promise each, by one line, and the rows that have to notice: `make
broken`."""
