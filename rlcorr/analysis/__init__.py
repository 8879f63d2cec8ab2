"""Questions about one batch under one correction: what a bound costs, and what its mismatch looks like."""
