"""Clients of other people against a cell, in an environment of their own: `make clients`."""
