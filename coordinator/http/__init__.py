"""The OpenAI-compatible HTTP front: the same processor as the gRPC service, in the same process and
event loop."""
