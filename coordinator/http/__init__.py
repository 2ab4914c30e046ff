"""The OpenAI-compatible HTTP front: the same desk as the gRPC service, in the same process and event loop."""
