"""Shared parts of the translators: reading keys, refusing what a system cannot express, and writing text to paste."""
