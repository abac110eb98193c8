"""Search among few tokens, held against a search of all tokens without the others."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from keras import ops
from support.cases import once
from support.fake_models import EOS, PAD, UNK, PrefixModel
from support.parallel_text import SENTENCES
from support.searching import beam_search
from support.small_models import small_model

from keras_transformer import Ensemble, SearchOptions, TokenStore, Translator
from keras_transformer.decoding import ForbiddenWords, Request
from keras_transformer.decoding.decoding_loop import search
from keras_transformer.decoding.shortlist import ITERATIONS, Shortlist, lexical_table
from keras_transformer.errors import UserError
from keras_transformer.models import Transformer

V = 13
SOURCE = np.array([[5, 9, 3, 0], [7, 8, 11, 3]], "int32")
ALLOWED = [[10, 5, 7], [9, 4, 6]]
SHORTLIST = np.array([[10, 5, 7, 5], [4, 9, 6, PAD]], "int32")
ALWAYS = (PAD, UNK, 2, EOS)


class MaskedModel(PrefixModel):
    """Predicts only the allowed tokens of each sentence, by minus infinity for all others."""

    def __init__(self, allowed):
        super().__init__(V)
        self.allowed = np.zeros((len(allowed), 1, V), "bool")
        for row, tokens in enumerate(allowed):
            self.allowed[row, 0, [*tokens, *ALWAYS]] = True
            self.allowed[row, 0, PAD] = False  # Its probability counts in a search of all tokens.

    def step(self, token_ids, cache, position):
        logits, cache = super().step(token_ids, cache, position)
        allowed = ops.convert_to_tensor(self.allowed)
        return ops.where(allowed, logits, -float("inf")), cache


def assert_same(found, expected):
    np.testing.assert_array_equal(found.ids, expected.ids)
    for name in ("scores", "log_probabilities"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 3, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_length": 5},
        *once(
            {"beam_size": 1},
            {"beam_size": 3, "n_best": 3},
            {"beam_size": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "n_best": 4},
        ),
    ],
)
def test_it_is_the_search_without_all_other_tokens(options):
    options["max_length"] = 8
    found = beam_search(PrefixModel(V), SOURCE, shortlist=SHORTLIST, **options)
    assert_same(found, beam_search(MaskedModel(ALLOWED), SOURCE, **options))


@pytest.mark.once
def test_tokens_of_constraints_are_added():
    fields = {
        "prefix_ids": np.array([[11, 12], [0, 0]], "int32"),
        "forbidden_ids": np.array([[[5, 7]], [[8, 0]]], "int32"),
        "required_ids": np.array([[[0, 0]], [[12, 4]]], "int32"),
    }
    options = {"beam_size": 4, "n_best": 2, "max_length": 8, **fields}
    found = beam_search(PrefixModel(V), SOURCE, shortlist=SHORTLIST, **options)
    allowed = [[*ALLOWED[0], 11, 12], [*ALLOWED[1], 8, 12]]
    assert_same(found, beam_search(MaskedModel(allowed), SOURCE, **options))
    assert found.ids[0, 0, :2].tolist() == [11, 12]
    assert {12, 4} <= set(found.ids[1, 0].tolist())


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize("variant", ["logits_bias", *once("sinusoidal", "own_output_matrix")])
def test_all_tokens_give_the_search_of_a_keras_model(variant):
    model = small_model(variant)
    every = np.tile(np.arange(V, dtype="int32"), (2, 1))
    options = {"beam_size": 3, "n_best": 3, "coverage_penalty": 0.2, "max_length": 8}
    found = beam_search(model, SOURCE, shortlist=every, **options)
    expected = beam_search(model, SOURCE, **options)
    np.testing.assert_array_equal(found.ids, expected.ids)
    cache, tokens = model.init_cache(SOURCE, 3), np.array([[4], [7]], "int32")
    limits = cache, model.limit_vocabulary(cache, every)
    whole, own = (ops.convert_to_numpy(model.step(tokens, x, 0)[0]) for x in limits)
    np.testing.assert_allclose(own[..., 1:], whole[..., 1:], atol=1e-6)
    assert (own[..., PAD] == -np.inf).all()
    limited = beam_search(model, SOURCE, shortlist=SHORTLIST, **options)
    for row, allowed in enumerate(ALLOWED):
        assert set(limited.ids[row].ravel().tolist()) <= {*allowed, *ALWAYS}


@pytest.mark.once
def test_what_a_shortlist_cannot_be_used_with_is_refused():
    request = Request(SOURCE, shortlist=SHORTLIST)
    with pytest.raises(ValueError, match="`rules` can't be combined with a shortlist"):
        search(PrefixModel(V), request, max_length=5, rules=[ForbiddenWords(((5,),))])
    model = Transformer(V, num_layers=1, d_model=12, num_heads=3, d_ff=11)
    model.quantize("int8")
    for quantized in (model, Ensemble([model])):
        with pytest.raises(ValueError, match="a token embedding that is not quantized"):
            search(quantized, request, max_length=5)


@pytest.fixture(scope="module")
def store(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    return TokenStore.build(folder, SENTENCES, tokenizer, progress=False)


@pytest.fixture(scope="module")
def shortlist(tokenizer, store):
    return Shortlist.learn(store, tokenizer, num_frequent=5, num_translations=3)


@pytest.mark.once
def test_a_sentence_gets_frequent_tokens_and_translations(tmp_path, tokenizer, shortlist):
    (ids,) = tokenizer.encode_source(["a dog runs"])
    tokens = shortlist.tokens(ids).tolist()
    assert tokens == sorted(set(tokens))
    assert set(shortlist.frequent.tolist()) <= set(tokens)
    assert len(tokens) <= 5 + 3 * len(ids)
    (full_stop,) = tokenizer.encode_target(["."])
    assert full_stop[-1] in shortlist.frequent
    path = tmp_path / "shortlist.npz"
    shortlist.save(path)
    for found, expected in zip(Shortlist.load(path), shortlist, strict=True):
        np.testing.assert_array_equal(found, expected)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"shortlist\.npz is missing or damaged"):
        Shortlist.load(path)
    with pytest.raises(UserError, match=r"other\.npz is missing or damaged: .*No such file"):
        Shortlist.load(tmp_path / "other.npz")


@pytest.mark.once
@pytest.mark.parametrize("beam_size", [1, 3])
def test_constraints_are_met_and_the_tokenizer_is_checked(tokenizer, shortlist, beam_size):
    model = Transformer(120, num_layers=1, d_model=12, num_heads=3, d_ff=11, max_length=64)
    sentences = [source for source, _ in SENTENCES[:3]]
    options = SearchOptions(beam_size=beam_size, max_length=20)
    translator = Translator(model, tokenizer, options, shortlist=shortlist)
    constraints = {
        "prefixes": ["ein", "", ""],
        "required": [[], ["park"], []],
        "forbidden": [[], [], ["buch"]],
    }
    first, second, third = translator.translate(sentences, **constraints)
    assert first.startswith("ein") and "park" in second and "buch" not in third

    other = shortlist._replace(fingerprint="0" * 64)
    with pytest.raises(ValueError, match="must be learned with the translator's tokenizer"):
        Translator(model, tokenizer, shortlist=other)


def model_1(pairs):
    """IBM model 1 as in Brown et al. 1993, one pair of tokens after another."""
    probabilities = defaultdict(lambda: 1.0)
    for _ in range(ITERATIONS):
        expected, totals = Counter(), Counter()
        for source, target in pairs:
            for t in target:
                norm = sum(probabilities[s, t] for s in [*source, None])
                for s in [*source, None]:
                    expected[s, t] += probabilities[s, t] / norm
                    totals[s] += probabilities[s, t] / norm
        probabilities = {(s, t): count / totals[s] for (s, t), count in expected.items()}
    return probabilities


@pytest.mark.once
@pytest.mark.parametrize("most", [10**9, 150])
def test_translations_are_the_most_probable_by_ibm_model_1(store, most, monkeypatch):
    monkeypatch.setattr("keras_transformer.decoding.shortlist.MOST_TOKEN_PAIRS", most)
    counts, table = lexical_table(store, 120, 120, 4)
    pairs = [tuple(side.tolist() for side in store.pair(index)) for index in range(len(store))]
    assert counts.tolist() == [sum(t.count(id) for _, t in pairs) for id in range(120)]
    sizes = sum((len(s) + 1) * len(t) for s, t in pairs)
    step = 1 if sizes <= most else -(-sizes // most)
    probabilities = model_1(pairs[::step])
    for source in range(120):
        own = {t: p for (s, t), p in probabilities.items() if s == source}
        best = table[source][table[source] >= 0].tolist()
        assert len(best) == min(4, len(own))
        np.testing.assert_allclose(
            [own[target] for target in best], sorted(own.values(), reverse=True)[:4], rtol=1e-9
        )
        assert (table[source][len(best) :] == -1).all()
