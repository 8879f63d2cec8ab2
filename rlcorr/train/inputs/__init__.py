"""Inputs of a run: tasks with prompts and rewards, models, and tokenizers."""
