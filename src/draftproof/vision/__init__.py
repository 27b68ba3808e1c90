"""Images: from whatever a user hands in to rows of features in a prompt. Pillow is imported with
the first image."""
