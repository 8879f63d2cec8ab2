"""Recorded runs as files: written whole or not at all, read, verified, made again."""
