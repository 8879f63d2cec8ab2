"""Every sentence of the app."""
