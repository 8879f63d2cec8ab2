"""Prompts and rewards, and where a model and its tokenizer come from."""
