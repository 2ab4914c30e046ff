"""A front end in a process of its own: client streams and text here, tokens in the cell behind
it."""
