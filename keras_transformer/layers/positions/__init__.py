"""Position encodings: absolute ones in the embeddings, relative ones in the attention."""
