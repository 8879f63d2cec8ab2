"""Runs, sketches, the study and the lessons, cached by what the disk says."""
