"""Decoding of the chain of causation; knows the target through a small interface."""
