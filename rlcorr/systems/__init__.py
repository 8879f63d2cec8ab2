"""Translators between our configurations and those of other systems: one file per system, and a folder for verl."""
