"""Engines, batches drawn from them, and the proof that they took the weights."""
