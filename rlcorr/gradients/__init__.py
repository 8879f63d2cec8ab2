"""The effect of a correction on the gradient: estimated from score sketches, and exact in a toy world."""
