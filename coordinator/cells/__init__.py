"""A coordinator as front ends see it: orders in, commits out, and the journal of both."""
