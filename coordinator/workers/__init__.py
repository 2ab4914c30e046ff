"""The other pools: who is there, in which state, and the streams to them."""
