"""Data and training of the models."""
