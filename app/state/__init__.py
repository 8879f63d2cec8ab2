"""What the session and the URL hold."""
