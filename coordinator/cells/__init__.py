"""The coordinator's interface to front ends: requests in, commits out, and the journal of both."""
