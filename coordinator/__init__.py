"""The room that conducts: admission, lanes, scheduling of verification, streams to clients. No
torch, no Ray."""
