"""A recurrent sequence-to-sequence model with attention that speaks the protocol of search.

It shows what a model other than `Transformer` needs: no base class, a cache of its own, no
`extend_cache`. Bahdanau et al. 2015, with dot-product attention and one matrix for both embeddings.
"""

import keras
import numpy as np
from keras import ops

from keras_transformer.models import Cache
from support.fake_models import BOS, PAD


class RecurrentModel:
    max_length = 40
    pad_id = PAD

    def __init__(self, vocabulary_size, width=8, seed=0):
        self.embedding = keras.layers.Embedding(vocabulary_size, width)
        self.encoder, self.decoder = keras.layers.GRUCell(width), keras.layers.GRUCell(width)
        self.output = keras.layers.Dense(vocabulary_size)
        self.embedding.build((None, None))
        self.encoder.build((None, width))
        self.decoder.build((None, 2 * width))
        self.output.build((None, width))
        layers = (self.embedding, self.encoder, self.decoder, self.output)
        self.variables = [variable for layer in layers for variable in layer.variables]
        generator = np.random.default_rng(seed)
        for layer in layers:
            for weight in layer.trainable_variables:
                weight.assign(generator.normal(size=weight.shape))

    def init_cache(self, source_ids, max_length, beam_size=1):
        inputs, mask = self.embedding(source_ids), source_ids != self.pad_id
        states = [ops.zeros_like(inputs[:, 0])]
        for position in range(source_ids.shape[1]):
            state, _ = self.encoder(inputs[:, position], states[-1])
            states.append(ops.where(mask[:, position, None], state, states[-1]))
        return Cache(
            beam=ops.repeat(states[-1][:, None], beam_size, axis=1),
            sentence={"memory": ops.stack(states[1:], axis=1), "mask": mask},
        )

    def step(self, token_ids, cache, position, return_attention_weights=False):
        memory, mask = cache.sentence["memory"], cache.sentence["mask"]
        scores = ops.matmul(cache.beam, ops.swapaxes(memory, 1, 2))
        weights = ops.softmax(ops.where(mask[:, None], scores, -1e9), axis=-1)
        inputs = ops.concatenate([self.embedding(token_ids), ops.matmul(weights, memory)], axis=-1)
        shape = ops.shape(inputs)
        flat, width = ops.reshape(inputs, (-1, shape[-1])), cache.beam.shape[-1]
        state, _ = self.decoder(flat, ops.reshape(cache.beam, (-1, width)))
        state = ops.reshape(state, (shape[0], shape[1], width))
        found = self.output(state), cache._replace(beam=state)
        return (*found, weights) if return_attention_weights else found

    def source_attention(self, source_ids, target_ids):
        cache = self.init_cache(source_ids, None, target_ids.shape[1])
        rows = []
        for position in range(target_ids.shape[2]):
            tokens = target_ids[:, :, position]
            _, cache, weights = self.step(tokens, cache, position, return_attention_weights=True)
            rows.append(weights)
        return ops.where((target_ids != self.pad_id)[..., None], ops.stack(rows, axis=2), 0.0)

    def log_probabilities(self, source_ids, prefix):
        """Of the token after `prefix`, decoded without search."""
        cache = self.init_cache(ops.convert_to_tensor([source_ids]), None)
        for position, token in enumerate([BOS, *prefix]):
            logits, cache = self.step(ops.convert_to_tensor([[token]]), cache, position)
        return ops.convert_to_numpy(ops.log_softmax(logits[0, 0])).astype("float64")
