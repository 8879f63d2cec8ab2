"""Strangers' files of log-prob pairs become a recorded step; sizes are looked at before data."""
