"""Position encodings, one per file."""
