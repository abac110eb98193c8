"""Lists of sentences of any lengths are translated by few compiled programs."""

import keras
import numpy as np
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


@pytest.fixture
def num_compiled(request):
    """A function that says how often the backend has compiled, for a translator."""
    if keras.config.backend() == "tensorflow":
        return lambda translator: len(translator.model.shapes)  # Python runs in traces alone.
    if keras.config.backend() == "torch":  # Nothing is compiled; shapes are as good.
        return lambda translator: len(set(translator.model.shapes))
    import jax

    compiled = []

    def listener(event, duration, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    request.addfinalizer(lambda: jax.monitoring.unregister_event_duration_listener(listener))
    return lambda translator: len(compiled)


class ShrinkingCopier(Copier):
    """Whose search goes in stages of 16, 24 and 32 tokens, with fewer and fewer sentences."""

    def extend_cache(self, cache, max_length):
        return cache

    def step(self, token_ids, cache, position):
        self.shapes.append(tuple(cache.sentence.shape))
        return super().step(token_ids, cache, position)


@pytest.mark.slow
@pytest.mark.each_backend
def test_a_thousand_lengths_compile_few_shapes_once(num_compiled):
    translator = new_translator(ShrinkingCopier(), beam_size=2, tokens_per_batch=512)

    def translate_any(count, seed):
        generator = np.random.default_rng(seed)
        lengths = generator.integers(1, 32, count)
        sentences = ["".join(map(str, generator.integers(0, 10, length))) for length in lengths]
        assert translator.translate(sentences) == sentences

    before = num_compiled(translator)
    translate_any(1000, seed=11)
    after = num_compiled(translator)
    # Widths 8, 16 and 32; up to 3 stages; 64, 32 and 16 sentences at first, then half as many, and
    # half of those: not all of them meet. JAX also counts what it compiles around the search.
    most = 20 if keras.config.backend() == "torch" else 50
    assert 3 <= after - before <= most
    translate_any(1000, seed=11)
    assert num_compiled(translator) == after
    translate_any(613, seed=12)
    assert num_compiled(translator) - before <= most
