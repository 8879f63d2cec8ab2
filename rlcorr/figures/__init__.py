"""Numbers become plotly figures, without a page or a file."""
