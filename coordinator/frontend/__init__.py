"""A front end, embedded or a process of its own: client streams and text here, tokens in the cell
behind it."""
