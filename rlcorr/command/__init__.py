"""`python -m rlcorr VERB`, and starting, following and stopping it from elsewhere."""
