"""How much of a block is verified, and the round between a verifier and its drafters: pure, time is
passed in."""
