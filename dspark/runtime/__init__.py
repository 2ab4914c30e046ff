"""How any process of the system lives: configuration, logs, metrics, gRPC server and channels,
device thread."""
