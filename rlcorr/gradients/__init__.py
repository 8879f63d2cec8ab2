"""What a correction does to the gradient: estimated from score sketches, and exact on a toy."""
