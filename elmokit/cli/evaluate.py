"""Measure how good a model is.

For perplexity, minimal pairs and reading times, the model needs its softmax and vocabulary. `elmokit evaluate all`
writes a report with all evaluations.

Examples:
    elmokit evaluate perplexity held-out.txt --model my-run
    elmokit evaluate all --data evaluation --report report.md
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elmokit.cli.evaluation_options import EvaluationOptions, Keep, Tokenizer
from elmokit.cli.running import check_needed, resumable_command
from elmokit.config import check_at_least
from elmokit.errors import ConfigError
from elmokit.evaluation.table import EVALUATIONS
from elmokit.storage.progress import ProgressBar

_OWN_COMMANDS = {
    "minimal-pairs": "elmokit.cli.evaluate:minimal_pairs",
    "perplexity": "elmokit.cli.perplexity:perplexity",
    "pos": "elmokit.cli.evaluate_probes:pos",
    "reading-times": "elmokit.cli.evaluate:reading_times",
    "wsd": "elmokit.cli.evaluate_probes:wsd",
}
COMMANDS = {
    "all": ("elmokit.cli.evaluate_all:evaluate_all", "Write a report with every evaluation for which there is data."),
    **{
        name: (_OWN_COMMANDS.get(name, f"elmokit.cli.evaluate:{name}"), purpose)
        for name, (_, purpose) in EVALUATIONS.items()
    },
}


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of an evaluation that has none of its own."""
    if name not in EVALUATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def command(data: Path, *, keep: Keep = None, common: EvaluationOptions) -> None:
        from elmokit.evaluation.report import evaluate_one

        common.check_figure()
        with resumable_command(lambda: keep is not None), ProgressBar("") as progress:
            result = evaluate_one(
                name,
                common.model,
                data,
                options=common.options,
                device=common.device,
                keep=keep,
                overwrite=common.overwrite,
                progress=progress,
            )
        common.show(result)

    command.__doc__ = f"""{EVALUATIONS[name][1]}

    DATA is a directory as for `elmokit evaluate all`.

    Examples:
        elmokit evaluate {name} evaluation/
        elmokit evaluate {name} evaluation/ --model my-run --json
    """
    return command


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
    common.show(result, result.to_text(by_paradigm))


def reading_times(
    folder: Path,
    *,
    text: tuple[str, ...] = (),
    keep: Keep = None,
    common: EvaluationOptions,
) -> None:
    """Measure how well the surprisal of each word explains the time that people take to read it.

    FOLDER has the files words.tsv and processed_wordinfo.tsv of Natural Stories, and optionally all_stories_gpt3.csv,
    the log probabilities of a large model, which is then shown too. They can be compressed (.gz, .xz, .zst).

    A linear regression on length, log frequency and surprisal, of a word and the two words before it, is compared with
    one without surprisal, on stories that it was not fitted on. Forward surprisal is what a reader could know; backward
    surprisal is a control.

    Args:
        text: Tokenized text, to count word frequencies and to train a 5-gram to compare with; can be repeated. Ideally
            the model's training text. Needs about 100 bytes of memory per token.

    Examples:
        elmokit evaluate reading-times natural-stories/
        elmokit evaluate reading-times natural-stories/ --text corpus/ --model my-run --figure reading.png
    """
    from elmokit.evaluation.natural_stories import WORDS, find_file, read_large_model, read_natural_stories
    from elmokit.evaluation.reading_times import LARGE_MODEL_NAME, evaluate_reading_times
    from elmokit.storage.checksums import file_digest
    from elmokit.storage.text_files import find_text_files

    common.check_figure()
    stories = read_natural_stories(folder)
    large = read_large_model(folder, stories)
    paths = find_text_files(text, reread=True) if text else []
    opened = common.open_language_model()
    words = find_file(folder, WORDS)
    settings = {"words": words and file_digest(words)}
    with common.resumable_parts(keep, opened, paths, settings) as parts, ProgressBar("") as progress:
        result = evaluate_reading_times(
            opened,
            stories,
            text=paths,
            others=None if large is None else {LARGE_MODEL_NAME: large},
            parts=parts,
            progress=progress,
        )
    common.show(result)


def similarity(
    files: tuple[Path, ...],
    *,
    columns: str | None = None,
    smoothing: tuple[float, ...] = (),
    whiten: tuple[str, ...] = (),
    sentences: int | None = None,
    tokenizer: Tokenizer = "treebank",
    keep: Keep = None,
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
    settings = {
        "tokenizer": tokenizer,
        "columns": columns,
        "smoothing": smoothing,
        "sentences": sentences,
    }
    texts = [*files, *whiten_paths]
    given = {"smoothings": smoothing} if smoothing else {}
    with common.resumable_parts(keep, elmo.model, texts, settings) as parts, ProgressBar("pairs") as progress:
        result = evaluate_similarity(elmo, pairs, whiten=whiten_sentences, parts=parts, progress=progress, **given)
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
