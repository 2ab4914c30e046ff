"""The wire protocol: generated messages in `v1`, and the codecs between them and our own types."""
