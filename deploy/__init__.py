"""Starts, watches and replaces the processes of a cell. No other package imports ray: `cluster.py`,
`ray_fleet.py` and `ray_table.py` do, `actors.py` inside an actor, and `train_workers.py` for
training."""
