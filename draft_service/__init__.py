"""The draft service: holds projected context, proposes blocks."""
