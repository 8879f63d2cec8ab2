"""Measurement of a correction: moments that merge exactly, and the metrics computed from them."""
