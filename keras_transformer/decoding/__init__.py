"""Translation with a trained model: beam search, sampling and the `Translator`."""
