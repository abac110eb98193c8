"""Translation probabilities of tokens."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from support.parallel_text import SENTENCES

from keras_transformer.data import Tokenizer, TokenStore
from keras_transformer.decoding.shortlist import ITERATIONS, lexical_table

V = 120


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    tokenizer = Tokenizer.train(SENTENCES, vocabulary_size=V)
    return TokenStore.build(tmp_path_factory.mktemp("store"), SENTENCES, tokenizer, progress=False)


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


@pytest.mark.parametrize("most", [10**9, 150])
def test_translations_are_the_most_probable_by_ibm_model_1(store, most):
    counts, table = lexical_table(store, V, V, 4, most_token_pairs=most)
    pairs = [tuple(side.tolist() for side in store.pair(index)) for index in range(len(store))]
    assert counts.tolist() == [sum(t.count(id) for _, t in pairs) for id in range(V)]
    sizes = sum((len(s) + 1) * len(t) for s, t in pairs)
    step = 1 if sizes <= most else -(-sizes // most)
    probabilities = model_1(pairs[::step])
    for source in range(V):
        own = {t: p for (s, t), p in probabilities.items() if s == source}
        best = table[source][table[source] >= 0].tolist()
        assert len(best) == min(4, len(own))
        np.testing.assert_allclose(
            [own[target] for target in best], sorted(own.values(), reverse=True)[:4], rtol=1e-9
        )
        assert (table[source][len(best) :] == -1).all()
