"""What every process of the system needs: configuration, logs, metrics, gRPC server and channels,
device thread."""
