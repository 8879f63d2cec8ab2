"""From rewards to the number that is differentiated."""
