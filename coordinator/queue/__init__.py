"""Who waits for a lane, and in which order they enter."""
