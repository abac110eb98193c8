"""Lists of sentences of any lengths are translated by few compiled programs."""

import pytest
from support.digits import Copier, new_translator

from keras_transformer._backend.compile_function import compiles_each_shape


@pytest.mark.each_backend
def test_long_lists_go_in_batches_of_few_shapes():
    model = Copier()
    translator = new_translator(model, beam_size=1, tokens_per_batch=32)
    sentences = [str(n) for n in range(19)]
    assert translator.translate([*sentences, "1" * 14]) == [*sentences, "1" * 14]
    # One of width 32 at a time; on PyTorch 2 of width 16, then 4 of width 8. 50 more than the
    # source would be longer than the model allows, 32.
    many = {(2, 16, 32), (4, 8, 32)}
    assert set(model.shapes) == ({(1, 32, 32)} if compiles_each_shape() else many)
