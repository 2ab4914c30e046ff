"""Starting, watching and replacing the processes of a cell. Nobody else imports ray; here,
`cluster.py` alone does."""
