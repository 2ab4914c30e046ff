"""A client's request: its checked fields, its sampling parameters, its tenant."""
