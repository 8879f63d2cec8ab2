"""The trained policy over one process or several: scores, micro-batches, gradient steps."""
