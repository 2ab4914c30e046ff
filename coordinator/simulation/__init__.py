"""The lane and scheduler code of a coordinator against simulated workers, in time that costs
nothing to wait for."""
