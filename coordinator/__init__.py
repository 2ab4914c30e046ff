"""The coordinator: admission, lanes, scheduling of verification, streams to clients. Imports
neither torch nor Ray."""
