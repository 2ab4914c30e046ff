"""The decoding rule: keyed draws, distributions, acceptance rules, and the reference loop that
tests compare with."""
