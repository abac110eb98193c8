"""Attention: scaled dot products (equation 1), heads, masks, and patterns for long sequences."""
