"""Questions about one batch under one correction: where its thresholds bite, what its mismatch looks like."""
