"""Strangers' files of log-prob pairs become a recorded step, or of any size a stream of batches."""
