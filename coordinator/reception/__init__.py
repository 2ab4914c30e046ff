"""The public service: requests in, text and tokens out."""
