"""Strips: everything that moves with a slider, for all its places at once, so that a drag is a look-up."""
