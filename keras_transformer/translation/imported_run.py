"""Makes a run of a trained model of another toolkit."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from filelock import FileLock
from pydantic import ValidationError

from keras_transformer import __version__
from keras_transformer._backend import without_tensorflow
from keras_transformer._files import atomic_write, check_is_free, keras_home, read_text, sha256_of
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import kind_of
from keras_transformer.errors import UserError
from keras_transformer.exchange.ctranslate2_reader import read_ctranslate2
from keras_transformer.exchange.foreign_model import ForeignModel
from keras_transformer.exchange.hub import PREFIX, download
from keras_transformer.exchange.hugging_face import read_hugging_face
from keras_transformer.exchange.marian import read_marian
from keras_transformer.models.transformer import Transformer
from keras_transformer.recipe.files import shipped_runs
from keras_transformer.recipe.settings import OF_RUN, Normalization, Recipe
from keras_transformer.runs.checkpoints import TOKENIZER_MEMBER, write_members
from keras_transformer.runs.run import Run


def import_run(
    source: str | Path,
    directory: str | Path,
    *,
    revision: str | None = None,
    vocabularies: Sequence[str | Path] = (),
    source_prefix: Sequence[str] = (),
    source_language: str | None = None,
    target_language: str | None = None,
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

    Raises:
        UserError: If the model cannot be imported. Then nothing is written.
    """
    check_is_free(directory)
    place, origin = Path(source), {"source": str(source)}
    if str(source).startswith(PREFIX):
        place = download(str(source), revision)
        origin["revision"] = place.name
    elif not place.exists():
        raise UserError(f"{source} does not exist. A model of the hub is hf://ORGANIZATION/NAME")
    foreign = _read(place, tuple(map(Path, vocabularies)))
    model, tokenizer = foreign.convert(source_prefix)
    given = zip((source_language, target_language), foreign.languages, strict=True)
    tree = _recipe(foreign, model, tokenizer, *(one or other for one, other in given))
    name = re.sub(r"[^\w.-]", "_", Path(directory).resolve().name).lstrip(".-") or "imported"
    tree = {"name": name, "description": f"Imported from {source}", **tree}
    try:
        run = Run(directory, Recipe.model_validate(tree, context=OF_RUN))
    except ValidationError as error:
        raise UserError(f"{source}: {' '.join(str(error).split())}") from None
    with atomic_write(directory) as partial:
        partial.mkdir()
        (partial / run.recipe_path.name).write_text(run.recipe.to_yaml(), "utf-8")
        tokenizer.save(partial / run.tokenizer_dir.name)
        path = partial / run.model_path.name
        with without_tensorflow():
            model.save(path)
        write_members(path, {TOKENIZER_MEMBER: tokenizer.fingerprint})
        content = json.dumps({**origin, **_facts(foreign)}, indent=2, ensure_ascii=False)
        (partial / run.origin_path.name).write_text(content + "\n", "utf-8")
    return run


def preset_run(source: str | Path, revision: str | None = None) -> Run:
    """Returns a run, or the run of a source, which is imported once, into Keras's folder."""
    place = Path(source)
    if (place / "recipe.yaml").is_file() or str(source) in shipped_runs():
        return Run.open(source)
    facts: list[Any] = [str(source), revision]
    if place.exists():
        files = [place, *(place.iterdir() if place.is_dir() else ())]
        facts = [[str(x.resolve()), x.stat().st_mtime_ns] for x in sorted(files)]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "_", place.name).strip("._") or "model"
    directory = keras_home() / "keras_transformer" / "imported" / digest / name
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(directory.parent / ".lock"):
        if directory.exists():
            return Run.open(directory)
        return import_run(source, directory, revision=revision)


def _read(place: Path, vocabularies: tuple[Path, ...]) -> ForeignModel:
    """Reads a model of the format that its files show."""
    if (place / "model.bin").is_file():
        return read_ctranslate2(place, vocabularies)
    if (place / "config.json").is_file():
        return read_hugging_face(place)
    if any(x.suffix in (".npz", ".bin") for x in (place.iterdir() if place.is_dir() else [place])):
        return read_marian(place, vocabularies)
    raise UserError(
        f"{place} is no model that can be imported: a folder needs config.json (Hugging Face), "
        "model.bin (CTranslate2) or a .npz or .bin file (Marian)"
    )


def _recipe(
    foreign: ForeignModel, model: Transformer, tokenizer: Tokenizer, source: str, target: str
) -> dict[str, Any]:
    """Returns the sections of a recipe that describes the model of two languages."""
    kind, *rules = kind_of(tokenizer.source_model)
    rules.append(kind_of(tokenizer.target_model)[1])
    rules = [rule if rule in get_args(Normalization) else "nmt_nfkc" for rule in rules]
    output = {x: getattr(model, x) for x in ("use_logits_bias", "tie_word_embeddings")}
    return {
        "data": {"source_language": source, "target_language": target},
        "tokenizer": {
            "model_type": kind,
            "vocabulary_size": tokenizer.target_vocabulary_size,
            "joint": foreign.is_joint,
            "normalization": rules[0],
            "target_normalization": rules[1] if rules[1] != rules[0] else None,
        },
        "model": {**foreign.arguments, **output},
        "evaluation": foreign.evaluation,
    }


def _facts(foreign: ForeignModel) -> dict[str, Any]:
    """Returns the contents of origin.json that can be read off the files."""
    card = read_text(foreign.path.with_name("README.md"))[:10_000]
    found = re.search(r"^license:\s*(\S+)", card, re.MULTILINE)
    return {
        "sha256": {file.name: sha256_of(file) for file in foreign.files if file.is_file()},
        "licence": found[1] if found else None,
        "notes": list(foreign.notes),
        "imported_with": f"keras3-transformer {__version__}",
    }
