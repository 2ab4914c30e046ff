"""The steps of `examples/tour.py`, in the order of the page: `drafts`, `rounds`, `budget`, `heads`;
`pair` is what they share."""
