"""What a person can set. Field docstrings become `--help`; wrong values are refused before anything starts."""
