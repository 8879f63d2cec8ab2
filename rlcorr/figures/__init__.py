"""Plotly figures from numbers. They know neither pages nor files."""

from rlcorr.errors import require_extra

require_extra("figures", "numpy", "plotly")
