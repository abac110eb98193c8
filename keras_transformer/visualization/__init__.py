"""Shows what a model does: pages and pictures of its attention."""
