"""What a run leaves, and shows while it goes on."""
