"""Makes a run of a trained model of another toolkit."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from keras_transformer import __version__
from keras_transformer._files import atomic_write, check_is_free, read_text, sha256_of
from keras_transformer.data.text_files import read_lines
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import kind_of
from keras_transformer.exchange.ctranslate2 import read_ctranslate2
from keras_transformer.exchange.foreign_model import ForeignModel
from keras_transformer.exchange.hugging_face import read_hugging_face
from keras_transformer.exchange.marian import read_marian
from keras_transformer.exchange.model_files import PREFIX, download, reading, shards
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.models.transformer import Transformer
from keras_transformer.recipe.files import validated
from keras_transformer.recipe.settings import Normalization, Recipe
from keras_transformer.runs.run import Run
from keras_transformer.translation.word_forms import WordForms

# OPUS-MT also has names of several languages, such as ROMANCE.
_ADVICE = "(--source-language and --target-language name the languages)"
# Settings and vocabularies beside the weights.
_VOCABULARY = (".json", ".yml", ".txt", ".spm", ".model")


def import_run(
    source: str | Path,
    directory: str | Path,
    *,
    revision: str | None = None,
    vocabularies: Sequence[str | Path] = (),
    source_prefix: Sequence[str] = (),
    source_language: str | None = None,
    target_language: str | None = None,
    text: str | Path | None = None,
) -> Run:
    """Makes a run folder of a trained model of Marian, Hugging Face or CTranslate2.

    The run has a recipe without text, the tokenizer and the model, so that it translates, scores
    and exports as any other. `training.initial_run` trains on from it. Its `origin.json` has the
    source, the revision, the SHA-256 of each file, the licence, and what the files had lost.

    Example:

    >>> import_run("hf://Helsinki-NLP/opus-mt-en-de", "runs/opus_en_de")

    Args:
        source: A folder or file, or "hf://ORGANIZATION/NAME" for a model of the Hugging Face hub.
            Its files are downloaded once. A MarianMT folder has `config.json`, `model.safetensors`
            (or `pytorch_model.bin`, which needs PyTorch), `vocab.json`, `source.spm` and
            `target.spm`. A Marian model is a `.npz` or float32 `.bin` file or its folder. A
            CTranslate2 folder has `model.bin`.
        directory: A new or empty folder.
        revision: Branch, tag or commit of the hub. Defaults to None, which means the newest at the
            time of the first download.
        vocabularies: SentencePiece model, or the models of source and target, of a Marian or
            CTranslate2 model. Defaults to those that lie beside it.
        source_prefix: Pieces that begin every source, such as `[">>por<<"]`, which tells a
            multilingual model the target language. Defaults to none.
        source_language: ISO 639-1 code. Defaults to that in the files, or "und".
        target_language: As `source_language`.
        text: File with sentences of the source language, from which the run learns `WordForms`.
            Defaults to None.

    Raises:
        UserError: If the model cannot be imported. Then nothing is written.
    """
    check_is_free(directory)
    with reading(source):
        files = [Path(x) for x in vocabularies]
        foreign, model, tokenizer = read_preset(source, revision, files, source_prefix)
        given = zip((source_language, target_language), foreign.languages, strict=True)
        languages, what = [one or other for one, other in given], f"Imported from {source}"
        place, search = f"{source} {_ADVICE}", foreign.evaluation
        recipe = recipe_of(directory, model, tokenizer, languages, what, search, place)
        origin = {"source": str(source), **_facts(foreign, files)}
    if str(source).startswith(PREFIX):
        origin["revision"] = foreign.path.parent.name
    with atomic_write(directory) as partial:
        run = Run(partial, recipe)
        run.write(model, tokenizer)
        if text is not None:
            WordForms.learn(read_lines(Path(text))).save(run.word_forms_path)
        content = json.dumps(origin, indent=2, ensure_ascii=False)
        run.origin_path.write_text(content + "\n", "utf-8")
    return Run(directory, recipe)


def read_preset(
    source: str | Path,
    revision: str | None = None,
    vocabularies: Sequence[Path] = (),
    source_prefix: Sequence[str] = (),
) -> tuple[ForeignModel, Transformer, Tokenizer]:
    """Reads a model of the format that its files show. The arguments are those of `import_run`."""
    with reading(source):
        hub = str(source).startswith(PREFIX)
        place = download(str(source), revision) if hub else Path(source)
        files = [place, *(place.iterdir() if place.is_dir() else ())]
        if (place / "model.bin").is_file():
            foreign = read_ctranslate2(place, vocabularies)
        elif (place / "config.json").is_file():
            foreign = read_hugging_face(place)
        elif any(x.is_file() and x.suffix in (".npz", ".bin") for x in files):
            foreign = read_marian(place, vocabularies)
        else:
            raise ValueError(
                "a folder needs config.json (Hugging Face), model.bin (CTranslate2) or a .npz or "
                ".bin file (Marian). A model of the hub is hf://ORGANIZATION/NAME"
            )
        return foreign, *foreign.convert(source_prefix)


def recipe_of(
    directory: str | Path,
    model: Seq2Seq,
    tokenizer: Tokenizer,
    languages: Sequence[str],
    description: str,
    evaluation: dict[str, Any],
    place: str,
) -> Recipe:
    """Returns a recipe without text that describes a trained model. A folder names it.

    Raises `UserError`, which begins with `place`, if a setting is wrong, such as a language.
    """
    kind, *rules = kind_of(tokenizer.source_model)
    rules.append(kind_of(tokenizer.target_model)[1])
    rules = [rule if rule in get_args(Normalization) else "nmt_nfkc" for rule in rules]
    name = re.sub(r"[^\w.-]", "_", Path(directory).resolve().name).lstrip(".-") or "run"
    sizes = {key: getattr(model, key) for key in sorted(type(model).settings())}
    preset = "base" if "base" in model.presets else next(iter(model.presets))
    tree = {
        "name": name,
        "description": description,
        "data": dict(zip(("source_language", "target_language"), languages, strict=True)),
        "tokenizer": {
            "model_type": kind,
            "vocabulary_size": tokenizer.target_vocabulary_size,
            "joint": model.target_vocabulary_size is None,
            "normalization": rules[0],
            "target_normalization": rules[1] if rules[1] != rules[0] else None,
        },
        "model": {"architecture": model.architecture, "preset": preset, **sizes},
        "evaluation": evaluation,
    }
    return validated(tree, place, is_of_run=True)


def _facts(foreign: ForeignModel, vocabularies: list[Path]) -> dict[str, Any]:
    """Returns the contents of origin.json that can be read off the files."""
    card = read_text(foreign.path.with_name("README.md"))[:10_000]
    found = re.search(r"^license:\s*(\S+)", card, re.MULTILINE)
    beside = (x for x in foreign.path.parent.iterdir() if x.suffix in _VOCABULARY and x.is_file())
    files = [foreign.path, *shards(foreign.path), *vocabularies, *beside]
    return {
        "sha256": {file.name: sha256_of(file) for file in files},
        "licence": found[1] if found else None,
        "notes": list(foreign.notes),
        "imported_with": f"keras3-transformer {__version__}",
    }
