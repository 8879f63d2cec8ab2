"""What a correction did: moments that merge exactly, and the metrics that follow from them."""
