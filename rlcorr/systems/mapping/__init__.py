"""What the translators share: reading keys, refusing what a system cannot say, and writing text to paste."""
