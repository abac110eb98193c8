"""A tokenizer of digits, and a model that repeats them."""

from keras import ops

from keras_transformer import SearchOptions, Tokenizer, Translator
from keras_transformer.models import Cache
from support.fake_models import BOS, EOS, PAD, UNK

A = 4


class Digits:
    """A tokenizer with one piece per character: digit d is id 4 + d."""

    pad_id, unk_id, bos_id, eos_id = PAD, UNK, BOS, EOS
    source_prefix_ids, target_prefix_ids, source_eos = [], [], True
    frame_source, frame_target = Tokenizer.frame_source, Tokenizer.frame_target
    split_tag, tag_ids = Tokenizer.split_tag, {}

    source_pieces = target_pieces = ["?"] * A + ["▁" + digit for digit in "0123456789"]

    def encode_source(self, sentences):
        return [[A + int(d) for d in sentence if d.isdigit()] for sentence in sentences]

    encode_target = encode_source

    def source_offsets(self, sentence):
        return [(n, n + 1) for n, character in enumerate(sentence) if character.isdigit()]

    def target_offsets(self, ids):
        return self.source_offsets(*self.decode_target([ids]))

    def decode_target(self, ids):
        return ["".join("?" if i < A else str(i - A) for i in pieces) for pieces in ids]


class Copier:
    """Repeats the source, one token a step, and attends to it; the shapes it saw are `shapes`."""

    max_length = 32
    pad_id = PAD
    variables = ()

    def __init__(self):
        self.shapes = []

    def init_cache(self, source_ids, max_length, beam_size=1):
        self.shapes.append((*source_ids.shape, max_length))
        return Cache(sentence=source_ids)

    def step(self, token_ids, cache, position):
        source = cache.sentence
        following = ops.take(source, ops.minimum(position, source.shape[1] - 1), axis=1)
        logits = 9.0 * ops.one_hot(following, 14)[:, None, :]
        logits = logits + ops.zeros((1, token_ids.shape[1], 1))
        return logits, cache

    def source_attention(self, source_ids, target_ids):
        length, width = target_ids.shape[-1], source_ids.shape[1]
        return ops.zeros((*target_ids.shape, 1)) + ops.one_hot(ops.arange(length), width)


def new_translator(model, tokens_per_batch=1024, **options):
    options = SearchOptions(**options)
    return Translator(model, Digits(), options, tokens_per_batch=tokens_per_batch)
