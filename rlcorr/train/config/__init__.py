"""The user's settings. Field docstrings become `--help`; wrong values raise `UsageError` before anything starts."""
