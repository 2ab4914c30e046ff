"""The workers of the other pools: their membership, their states, and the streams to them."""
