"""Elements of a page that our own JavaScript draws."""
