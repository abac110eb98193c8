"""Position encodings, one scheme a file."""
