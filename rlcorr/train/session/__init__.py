"""What lives as long as one training run: made, saved, and resumed."""
