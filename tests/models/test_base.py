"""What all models have in common; test_equivalence.py and test_seq2seq.py have the rest."""

import pytest
from support.seq2seq_models import new_model

from keras_transformer.models import architecture


def test_a_subclass_of_a_model_is_saved_with_its_own_arguments():
    class Narrow(architecture("recurrent")):
        pass

    model = Narrow(13, num_layers=1, d_model=4, d_embedding=3)
    assert Narrow.from_config(model.get_config()).d_model == 4


def test_float64_is_refused():
    with pytest.raises(ValueError, match="Received: dtype=float64"):
        new_model("recurrent", dtype="float64")
