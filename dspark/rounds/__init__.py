"""Verification policies, and the rounds between a verifier and its drafters: pure, time is passed
in."""
