"""Programs that show one row of the table in docs/reliability.md each; see docs/faults.md."""
