"""Chat in the words of other interfaces."""
