"""What processes say to each other: generated messages in `v1`, and the codec between them and our
nouns."""
