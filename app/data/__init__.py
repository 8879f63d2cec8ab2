"""Runs, sketches, the study and the lessons, cached by the state of their files."""
