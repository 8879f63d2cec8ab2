"""What can be picked on the pages: the options of fields of state.py, in the words that pages and addresses have."""

CONFIGURATIONS, RUNS = MODES = ("two configurations", "two runs")
"""What Compare compares."""
