"""The static site: the live parts of the app over the committed runs, as files for any host."""
