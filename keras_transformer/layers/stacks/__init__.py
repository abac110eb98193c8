"""Stacks of layers: the encoder and the decoder of Figure 1."""
