"""Measure how good a model is.

For perplexity and minimal pairs, the model needs its softmax and vocabulary.

Examples:
    elmokit evaluate perplexity held-out.txt --model my-run
    elmokit evaluate similarity sts-dev.csv
"""

from __future__ import annotations

from pathlib import Path

from elmokit.cli.evaluation_options import EvaluationOptions, Keep, Tokenizer
from elmokit.cli.running import check_needed
from elmokit.config import check_at_least
from elmokit.errors import ConfigError
from elmokit.storage.progress import ProgressBar

COMMANDS = {
    "perplexity": (
        "elmokit.cli.perplexity:perplexity",
        "Compute the perplexity of a text, and each token's surprisal.",
    ),
    "minimal-pairs": (
        "elmokit.cli.evaluate:minimal_pairs",
        "Test whether a model prefers acceptable sentences (BLiMP).",
    ),
    "similarity": (
        "elmokit.cli.evaluate:similarity",
        "Compare cosines of vectors with people's scores (STS benchmark).",
    ),
    "pos": ("elmokit.cli.evaluate_probes:pos", "Probe parts of speech with a linear classifier."),
    "wsd": ("elmokit.cli.evaluate_probes:wsd", "Probe word senses with a nearest-mean classifier."),
}


def minimal_pairs(
    files: tuple[str, ...],
    *,
    published: Path | None = None,
    by_paradigm: bool = False,
    tokenizer: Tokenizer = "treebank",
    keep: Keep = None,
    common: EvaluationOptions,
) -> None:
    """Compare the probabilities of an acceptable and an unacceptable sentence, as BLiMP does.

    FILES have a JSON object on each line, with the keys sentence_good and sentence_bad (raw text), UID (the paradigm)
    and linguistics_term (the phenomenon). They can be compressed (.gz, .xz, .zst). A directory is searched for *.jsonl
    files.

    A sentence is more probable if the sum of its log probabilities, sentence end included, is higher: in the forward
    direction, the backward direction, or both added. Ties count as wrong. Accuracies are means over paradigms.

    Args:
        published: Accuracies of other models to show next to it: a table (TSV) with a column UID and a column for each
            model.
        by_paradigm: Show a row for each paradigm instead of each phenomenon.

    Examples:
        elmokit evaluate minimal-pairs blimp/ --figure blimp.png
        elmokit evaluate minimal-pairs blimp/*.jsonl --model my-run --published published.tsv --keep blimp-parts
    """
    from elmokit.evaluation.minimal_pairs import (
        evaluate_minimal_pairs,
        read_minimal_pairs,
        read_published_accuracies,
    )
    from elmokit.storage.text_files import find_text_files, or_packed
    from elmokit.text.tokenize import get_tokenizer

    common.check_figure()
    paths = find_text_files(files, reread=True, suffixes=or_packed(".jsonl"))
    other_models = None if published is None else read_published_accuracies(published)
    paradigms = read_minimal_pairs(paths)
    tokenize = get_tokenizer(tokenizer)
    opened = common.open_language_model()
    settings = {"tokenizer": tokenizer}
    with common.resumable_parts(keep, opened, paths, settings) as parts, ProgressBar("sentences") as progress:
        result = evaluate_minimal_pairs(
            opened, paradigms, tokenize, published=other_models, parts=parts, progress=progress
        )
    common.show(result, result.table_rows(by_paradigm))


def similarity(
    files: tuple[Path, ...],
    *,
    columns: str | None = None,
    smoothing: tuple[float, ...] = (),
    whiten: tuple[str, ...] = (),
    sentences: int | None = None,
    tokenizer: Tokenizer = "treebank",
    common: EvaluationOptions,
) -> None:
    """Compare the cosine of two sentence or word vectors with the similarity that people gave the pair.

    FILES have two sentences or words and a score in each row: CSV as the STS benchmark if they are named .csv, else
    columns separated by tabs or spaces, as in lists of word pairs. A header is skipped.

    Token vectors are pooled in every way: each layer, their average and all concatenated; with equal weights (mean) and
    with less weight for frequent words (sif); and with the whitening and the trained head that the model stores.

    Args:
        columns (A,B,SCORE): The columns of the two sentences or words and of the score, from 1, if a file has more than
            three.
        smoothing: Values of a for sif; can be repeated.  [default: 0.0003]
        whiten: Tokenized text to fit a whitening on; can be repeated.
        sentences: Sentences of each --whiten to use.  [default: 2000]

    Examples:
        elmokit evaluate similarity sts-dev.csv
        elmokit evaluate similarity wordsim.txt --columns 1,2,4 --tokenizer spaces --model original
    """
    from itertools import islice

    from elmokit.evaluation.similarity import evaluate_similarity, read_scored_pairs
    from elmokit.storage.text_files import check_can_reread, find_text_files, read_sentences
    from elmokit.text.tokenize import get_tokenizer

    common.check_figure()
    check_needed("--sentences", sentences is not None, "--whiten", whiten)
    sentences = 2000 if sentences is None else sentences
    check_at_least("--sentences", sentences, 2)
    tokenize, chosen = get_tokenizer(tokenizer), _three_columns(columns)
    for path in files:
        check_can_reread(path)
    pairs = {str(path): read_scored_pairs(path, tokenize, chosen) for path in files}
    whiten_paths = find_text_files(whiten, reread=True) if whiten else []
    whiten_sentences = [tokens for path in whiten_paths for tokens in islice(read_sentences(path), sentences)]
    elmo = common.open_elmo()
    given = {"smoothings": smoothing} if smoothing else {}
    with ProgressBar("pairs") as progress:
        result = evaluate_similarity(elmo, pairs, whiten=whiten_sentences, progress=progress, **given)
    common.show(result)


def _three_columns(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    try:
        first, second, score = (int(number) for number in text.split(","))
    except ValueError:
        first = second = score = 0
    if min(first, second, score) < 1:
        raise ConfigError(f"--columns is {text!r}; expected three column numbers from 1, such as 1,2,4.")
    return first, second, score
