"""What moves with a threshold, view by view: as numbers, texts and pictures, now and at every place of a slider."""
