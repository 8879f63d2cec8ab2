"""Configurations as other systems write them, both ways, one file per system."""
