"""From a person's hand to a configuration: pickers, bounds, choices, dragging, links, uploads."""
