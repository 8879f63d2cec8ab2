"""Every sentence that the app says."""
