"""What the writers of other formats need of a model: checks and weights."""

from types import SimpleNamespace

import keras
import pytest
from support.parallel_text import SENTENCES

from keras_transformer.data import Tokenizer
from keras_transformer.formats.exported_model import check_model, check_supported
from keras_transformer.models import Transformer

pytestmark = pytest.mark.once

V = 60
SIZES = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 4}


def test_only_models_with_their_own_tokenizer_are_written():
    tokenizer = Tokenizer.train(SENTENCES, vocabulary_size=V, joint=False)
    check_model(Transformer(V, target_vocabulary_size=V, **SIZES), tokenizer)
    with pytest.raises(ValueError, match="must be the model's tokenizer.*61, 60, 0.*60, 60, 0"):
        check_model(Transformer(61, target_vocabulary_size=V, **SIZES), tokenizer)
    with pytest.raises(ValueError, match="must be a Seq2Seq.*Received: model=<Sequential"):
        check_model(keras.Sequential(), tokenizer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_quantized_models_are_refused():
    model = Transformer(V, **SIZES)
    model.quantize("int8")
    with pytest.raises(ValueError, match="must not be quantized"):
        check_model(model, Tokenizer.train(SENTENCES, vocabulary_size=V))


def test_other_architectures_are_refused():
    model = SimpleNamespace(architecture="own")
    with pytest.raises(ValueError, match="It supports only the architecture transformer"):
        check_supported(model, "It")
