"""Score sketches of recorded steps, made from sampled answers or from every likely answer."""
