"""``elmokit sentence-head``: train sentence vectors on pairs of sentences."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import click

from elmokit.cli.evaluation_options import Tokenizer
from elmokit.cli.parameters import Json, Model, ModelOptions, Output, Overwrite
from elmokit.cli.running import echo_json, print_note
from elmokit.storage.progress import ProgressBar, count_of

if TYPE_CHECKING:
    from elmokit.formats.format import Storage


def sentence_head(
    pairs: tuple[Path, ...],
    *,
    out: Output,
    model: Model = None,
    options: ModelOptions = None,
    held_out: Path | None = None,
    tokenizer: Tokenizer = "treebank",
    steps: Annotated[int, click.IntRange(min=1)] = 300,
    learning_rate: float = 2e-3,
    word_learning_rate: float = 1e-2,
    decay: float = 1.0,
    seed: int = 0,
    json: Json = False,
    overwrite: Overwrite = False,
) -> None:
    """Train sentence vectors on PAIRS of sentences that people have compared, and save the model with them.

    PAIRS are files of pairs with scores, as for `elmokit evaluate similarity`: two sentences and a number in
    each row, CSV if they are named .csv. Files named .jsonl have labels as SNLI: their entailed pairs are used, each
    of which should be closer than others.

    The head is a linear map and a weight for each word, on top of the context-free layer 0. Training takes a minute.
    To use the result, choose `--pool trained` in `elmokit embed`, or "trained" in Python.

    Args:
        out: Directory for the model with its trained head.
        held_out: Pairs with scores to measure on, before and after.
        steps: Number of optimizer steps.
        learning_rate: Learning rate of the linear map.
        word_learning_rate: Learning rate of the word weights. 0 leaves them as they are.
        decay: How strongly the map and the weights are pulled toward their initial values.
        seed: Seed of the order of the pairs.

    Examples:
        elmokit sentence-head sts-train.csv --held-out sts-dev.csv --out my-model
        elmokit sentence-head sts-train.csv snli-train.jsonl --model my-elmo --out my-model
    """
    from elmokit.embedding.elmo import Elmo
    from elmokit.embedding.sentence_vectors import SentenceEmbedder
    from elmokit.evaluation.similarity import read_scored_pairs, score_similarity
    from elmokit.formats.save import refuse_incomplete_target, save_model
    from elmokit.storage.text_files import check_can_reread, unpacked_name
    from elmokit.tasks.readers.pairs import read_pairs
    from elmokit.text.tokenize import get_tokenizer
    from elmokit.training.sentence_head import HeadConfig, train_sentence_head

    refuse_incomplete_target(out, overwrite, "a head")
    config = HeadConfig(steps, learning_rate, word_learning_rate, decay, seed)
    tokenize = get_tokenizer(tokenizer)
    for path in pairs:
        check_can_reread(path)
    with_labels = [path for path in pairs if unpacked_name(path).endswith(".jsonl")]
    scored = [pair for path in pairs if path not in with_labels for pair in read_scored_pairs(path, tokenize)]
    entailed = [
        (tokenize(pair.first), tokenize(pair.second))
        for path in with_labels
        for pair in read_pairs(str(path))
        if pair.label == "entailment"
    ]
    measured = [] if held_out is None else read_scored_pairs(held_out, tokenize)
    elmo = Elmo.from_pretrained(model, options=options)
    result: dict[str, object] = {"scored_pairs": len(scored), "entailed_pairs": len(entailed)}

    def measure(embedder: SentenceEmbedder) -> float | None:
        correlation = score_similarity(embedder, measured).spearman
        return None if math.isnan(correlation) else correlation

    if held_out is not None:
        result["held_out"] = held_out.name
        result["spearman_before"] = measure(SentenceEmbedder(elmo))
    with ProgressBar("steps") as progress:
        elmo.model.sentence_head = train_sentence_head(elmo, scored, entailed, config, progress)
    if held_out is not None:
        result["spearman"] = measure(SentenceEmbedder.by_name(elmo, "trained"))
    elmo.model.card["sentence_head"] = {"pairs": [path.name for path in pairs], **result}
    # As they were stored: only the head is new.
    save_model(elmo.model, out, cast("Storage", elmo.model.storage), overwrite)
    if json:
        echo_json(result)
    else:
        click.echo(f"Trained on {count_of(len(scored), 'scored pair')} and {count_of(len(entailed), 'entailed pair')}.")
        if held_out is not None:
            after, before = (
                "none, as all cosines are equal" if result[key] is None else f"{result[key]:.3f}"
                for key in ("spearman", "spearman_before")
            )
            click.echo(
                f"{held_out}, {count_of(len(measured), 'pair')}, Spearman correlation of cosines with scores: "
                f"{after}; before: {before}."
            )
    print_note(f"wrote {out}")
