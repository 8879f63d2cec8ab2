"""Score sketches of recorded steps, of sampled answers or of every likely answer."""
