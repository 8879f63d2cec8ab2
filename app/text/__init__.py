"""Sentences that several pages share, and tables of sentences."""
