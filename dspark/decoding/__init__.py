"""The decoding rule, once: keyed draws, distributions, acceptance, and the loop that is the oracle
for all of it."""
