"""What is drawn by our own JavaScript."""
