"""Rollout engines, the batches that they sample, and the proof that they took new weights."""
