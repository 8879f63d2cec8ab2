"""Controls of the pages: pickers, bounds, choices, dragging, links, uploads."""
