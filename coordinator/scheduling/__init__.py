"""How much is drafted and verified, and what that costs and brings: pure parts."""
