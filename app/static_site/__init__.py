"""The page that needs no installation: the live part of the app over the committed runs, as files for any host."""
