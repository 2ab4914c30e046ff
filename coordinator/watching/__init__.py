"""What rounds and requests tell of themselves to whoever looks."""
