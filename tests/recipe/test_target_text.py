"""Target text of many scripts: a translator can equal every reference after `init`."""

import random

import pytest

from keras_transformer import Tokenizer, load_recipe
from keras_transformer.data.corpus_report import examine
from keras_transformer.evaluation.run_evaluation import bleu
from keras_transformer.recipe.new_recipe import Text, choose_settings

# Own sentences with the characters that normalization replaces.
SENTENCES = {
    "de": [
        "Die Wohnung hat 80\u00a0m² und kostet ½ so viel.",
        "„Na ja …“, sagte sie – Art.\u202f5.",
    ],
    "fa": [
        "می\u200cخواهم کتاب\u200cها را بخوانم.",
        "خانه\u200cای بزرگ\u200cتر نمی\u200cخریم؛ چرا؟",
    ],
    "ja": ["㈱山田は「ＡＢＣ」を発売した！", "気温は３５℃、湿度は８０％です。", "ﾃﾚﾋﾞは①階です。"],
    "ko": ["무게는 5㎏이고 넓이는 3㎡이다.", "㈜한국은 “좋다”고 했다ㅋㅋ."],
    "zh": ["你好，世界！今天（周三）天气怎么样？", "价格：￥１２０；“很便宜”……"],
    "emoji": ["Great 👩\u200d💻 work ❤\ufe0f 👍🏽!", "The Donau\u00adkanal ﬂows\u2011by \u2009🇦🇹."],
}


@pytest.mark.parametrize("language", SENTENCES)
def test_copied_references_have_a_bleu_of_100_with_the_settings_of_init(language, tmp_path):
    rng, sentences = random.Random(1), SENTENCES[language]
    words = [word for sentence in sentences for word in sentence.split(" ")]
    pairs = [(f"line {n}", sentences[n % len(sentences)]) for n in range(60)]
    pairs += [(f"text {n}", " ".join(rng.choices(words, k=9))) for n in range(400)]
    settings = choose_settings(examine(pairs))
    assert "345 of 345 target sentences (100.00%) come back unchanged" in settings.round_trip
    path = tmp_path / "recipe.yaml"
    text = Text(tmp_path / "a.en", tmp_path / "a.xx", "en", language[:3])
    path.write_text(settings.to_yaml("name", text), encoding="utf-8")
    recipe = load_recipe(path)
    tokenizer = Tokenizer.train(pairs, **recipe.tokenizer.model_dump())
    references = [target for _, target in pairs]
    translations = tokenizer.decode_target(tokenizer.encode_target(references))
    assert translations == references
    assert tokenizer.decode_target(tokenizer.encode_source(references)) != references
    assert bleu(translations, references, **recipe.bleu_settings) == pytest.approx(100)
