"""What all models have in common: a config that may contain other models."""

import json

from keras_transformer import BertEncoder, MaskedLanguageModel


def test_config_contains_the_model_that_is_an_argument_and_all_changes_once():
    encoder = BertEncoder(13, num_layers=1, d_model=4, num_heads=2, d_ff=6, max_length=5)
    encoder.embedding.trainable = False
    model = MaskedLanguageModel(encoder)
    model.quantize("int8")
    config = json.loads(json.dumps(model.get_config()))
    assert config["changes"] and "changes" not in config["encoder"]["config"]
    loaded = MaskedLanguageModel.from_config(config)
    assert json.loads(json.dumps(loaded.get_config())) == config
    assert not loaded.encoder.embedding.trainable
