"""From a trained model to translations: one search, its options, and the `Translator`."""
