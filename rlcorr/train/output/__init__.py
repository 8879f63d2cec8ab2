"""Output of a run: its files, and what a person sees while it trains."""
