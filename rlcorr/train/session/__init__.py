"""The objects of one training run: how they are made, saved and restored."""
