"""The live parts, view by view: numbers, texts and pictures, for the present bounds and for every slider value."""
