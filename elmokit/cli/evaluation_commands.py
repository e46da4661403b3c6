"""Evaluate a model.

Perplexity and minimal pairs need a model with its softmax and vocabulary.

Examples:
    elmokit evaluate perplexity held-out.txt --model my-run
    elmokit evaluate similarity sts-dev.csv
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from elmokit.cli.command import MORE, Flag
from elmokit.cli.parameters import (
    Device,
    DocumentOptions,
    Json,
    Model,
    ModelOptions,
    OptionalOutput,
    OutputPath,
    Overwrite,
    StartName,
)
from elmokit.cli.running import check_apart, check_needed, echo_json, print_note, resumable_command
from elmokit.config import check_at_least
from elmokit.engine.precision import Precision
from elmokit.errors import ConfigError, TextError
from elmokit.formats.opening import PRECISION, LanguageModelOpening
from elmokit.storage.atomic import check_output_path
from elmokit.storage.progress import ProgressBar, StageCounter
from elmokit.storage.text_files import STDIN, TextPaths, check_not_input
from elmokit.text.tokenize import Tokenization

if TYPE_CHECKING:
    from elmokit.embedding.elmo import Elmo
    from elmokit.evaluation.result import Result, Row
    from elmokit.lm.bilm_tf_perplexity import BilmTfPerplexity
    from elmokit.lm.language_model import LanguageModel
    from elmokit.lm.perplexity import Perplexity
    from elmokit.lm.surprisal import RegionSurprisal, Surprisal, TokenSurprisal, WordSurprisal
    from elmokit.text.text import RawPassage, Text
    from elmokit.text.vocabulary import UnknownWords

COMMANDS = ("perplexity", "minimal_pairs", "similarity", "pos", "wsd")
Tokenizer = Annotated[Tokenization, Flag("How to split sentences: into Penn Treebank tokens, or at spaces.")]


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of every evaluation."""

    model: Model = None
    options: ModelOptions = None
    json: Json = False
    device: Device = None
    overwrite: Annotated[bool, Flag("Start over: replace existing outputs and stored results.")] = False

    def open_elmo(self) -> Elmo:
        """Open the model for computing vectors."""
        from elmokit.embedding.elmo import Elmo

        return Elmo.from_pretrained(self.model, options=self.options, device=self.device)

    def show(self, result: Result, rows: Sequence[Row] | None = None) -> None:
        """Print the result as JSON, or as a table of ``rows`` (default: all)."""
        if self.json:
            echo_json(result.to_dict())
        else:
            click.echo(result.to_text(rows))


Start = Annotated[
    StartName | None,
    Flag("LSTM state that each sentence starts from: the model's start state, or zero.  [default: warm]", MORE),
]


@dataclass(frozen=True)
class ScoringOptions:
    """What the predictions of a sentence depend on, besides the sentence."""

    cache: Annotated[bool, Flag("With --documents, expect words from earlier in the document.")] = False
    start: Start = None


@dataclass(frozen=True)
class WordOptions:
    """Options for words and regions."""

    words: bool = False
    column: str | None = None
    region: str | None = None

    def text(self, reading: DocumentOptions, paths: TextPaths) -> Text:
        """Return the text. With --words, it is raw text, even without --raw."""
        from elmokit.text.text import is_conllu

        if not self.words:
            return reading.text(paths)
        text = replace(reading, raw=True).text(paths)
        for path in text.files:
            if is_conllu(path):
                raise TextError(f"{path} is CoNLL-U and has words already: omit --words.")
        return replace(text, kind="words", column=self.column)


@dataclass(frozen=True)
class TableOptions:
    """Options for the output table."""

    out: Annotated[Path, OutputPath(allow_dash=True)] = Path(STDIN)
    overwrite: Overwrite = False
    bits: bool = False


def surprisal(
    texts: tuple[Path, ...],
    *,
    model: Model = None,
    words: WordOptions,
    reading: DocumentOptions,
    table: TableOptions,
    scoring: ScoringOptions,
    precision: Precision = "float32",
    opening: LanguageModelOpening,
) -> None:
    """Compute the surprisal of each token or word of TEXTS.

    The table (TSV) has a row per token, including sentence boundaries: the index of the sentence, from 0; the token;
    its surprisal in nats given the tokens before it (forward) and after it (backward); unknown; spelling_nats; the line
    in the file, from 1; and the file, if there are several.

    A word outside the model's vocabulary (unknown: 1) gets the surprisal of <UNK>, which is low because <UNK> stands
    for all such words. To compare it with other words, add spelling_nats, the surprisal of its letters.

    With --words, there is a row per word between spaces, including attached punctuation: the file, if there are
    several; the other columns of the table (or the line); the indices of the text, its sentence and its word; the word;
    its start and end character in the text; and the sums over its n_tokens tokens.

    With --region, there is a row per text instead: the sums over all tokens of a region, such as the critical words;
    its start and end character; and the words that it touches.

    TEXTS are files (.txt, .conllu, .gz, .xz, .zst), directories or quoted patterns of text with one tokenized sentence
    per line, or - for standard input. For untokenized text, pass --raw. With --words, they are tables (TSV or CSV with
    a header) or have one raw text per line.

    Args:
        words: Write one row per word of raw text.
        column (NAME): With --words, the column of the table that has the text.
        region (NAME): With --words, sum over the region in this column: a part of the text, or two offsets such as
            10:18.
        out (FILE): Write the table to this file; - for standard output. With --words, .csv files are written as CSV.
        bits: Write bits instead of nats.

    More options:
        precision: Lowest precision of the LSTM weights. Lower precision is faster, but less accurate for single words.

    Examples:
        elmokit surprisal stimuli.tsv --column sentence --words --out words.tsv
        elmokit surprisal stimuli.tsv --column sentence --words --region critical --out regions.tsv
        elmokit surprisal held-out.txt --out surprisal.tsv
        echo "The cat sat on the mat." | elmokit surprisal - --raw
    """
    from elmokit.lm.language_model import LanguageModel

    check_needed("--cache", scoring.cache, "--documents", reading.documents)
    check_needed("--column", words.column, "--words", words.words)
    check_needed("--region", words.region, "--column", words.column)
    check_apart("--words", words.words, {"--text-kind": reading.text_kind})
    text = words.text(reading, texts)
    _check_table_path(table.out, table.overwrite, text.files)
    raw_texts = _read_raw_texts(text, words.region) if words.words else ()
    regions = {} if words.region is None else _locate_regions(list(raw_texts))
    # Files are unwrapped when they are read, but a cell of a table can have several lines, too.
    settings: dict[str, Any] = {
        "documents": text.documents,
        "cache": scoring.cache,
        "language": text.language,
        "wrapped": "no" if text.column is None else text.wrapped,
    }
    start = scoring.start or "warm"
    language_model = LanguageModel.from_pretrained(model, start=start, precision=precision, **vars(opening))
    with (
        ProgressBar("words" if words.words else "tokens") as progress,
        _table(table.out, table.overwrite, is_quoted=words.words) as write,
    ):
        assert write is not None
        if regions:
            unknown = _write_regions(language_model, list(raw_texts), regions, settings, write, table.bits)
        elif words.words:
            unknown = _write_words(language_model, raw_texts, settings, write, table.bits, progress)
        else:
            unknown = _write_tokens(language_model, text, scoring.cache, write, table.bits, progress)
    if unknown.n_unknown:
        what = "Regions with unknown words" if regions else "Unknown words"
        click.echo(_unknown_note(what, unknown, scoring.cache, table.bits), err=True)


def _unknown_note(what: str, unknown: UnknownWords, cache: bool, bits: bool) -> str:
    """Return a note about the unknown words in a table."""
    from elmokit.text.vocabulary import name_words

    new = " unless they occurred earlier in the document" if cache else ""
    unit = "bits" if bits else "nats"
    return (
        f"{what}, which are not in the model's vocabulary: {unknown.n_unknown:,} of {unknown.n_words:,} "
        f"({name_words(unknown.first)}). Their surprisal is that of <UNK>{new}; add spelling_{unit} to compare it with "
        "other words."
    )


@dataclass(frozen=True)
class PerplexityOutput:
    """Options for the output of ``perplexity``."""

    per_token: Annotated[Path | None, OutputPath(allow_dash=True)] = None
    json: Json = False
    overwrite: Overwrite = False
    as_bilm_tf: int | None = None


def perplexity(
    texts: tuple[Path, ...],
    *,
    model: Model = None,
    reading: DocumentOptions,
    scoring: ScoringOptions,
    output: PerplexityOutput,
    opening: LanguageModelOpening,
    precision: Annotated[Precision | None, Flag(PRECISION, MORE)] = None,
    batch_tokens: Annotated[int, Flag("Positions per batch. Does not change the result.", MORE)] = 2048,
) -> None:
    """Compute the perplexity of a model on TEXTS.

    The full softmax is used. Each token and each sentence end counts once per direction.

    TEXTS are files (.txt, .conllu, .gz, .xz, .zst), directories or quoted patterns of text with one tokenized sentence
    per line, or - for standard input. Several files are scored as one text. For untokenized text, pass --raw.

    Args:
        per_token (FILE): Also write the table of `elmokit surprisal` (TSV; - for standard output).

    More options:
        as_bilm_tf (B): Print what bilm-tf's run_test prints for batch size B.

    Examples:
        elmokit evaluate perplexity held-out.txt --model my-run
        elmokit evaluate perplexity essay.txt --raw --per-token surprisal.tsv
    """
    from elmokit.formats.folder import DEFAULT_MODEL
    from elmokit.lm.language_model import LanguageModel
    from elmokit.lm.perplexity import unknown_words_warning

    check_at_least("batch_tokens", batch_tokens, 1)
    check_at_least("as_bilm_tf", output.as_bilm_tf, 1, optional=True)
    check_needed("--cache", scoring.cache, "--documents", reading.documents)
    # bilm-tf splits lines at spaces, carries its state, and prints one number.
    others = {
        "--per-token": output.per_token,
        "--start": scoring.start,
        "--raw": reading.raw,
        "--documents": reading.documents,
        "--text-kind": reading.text_kind,
    }
    check_apart("--as-bilm-tf", output.as_bilm_tf, others)
    is_on_stdout = str(output.per_token) == STDIN
    check_apart("--per-token -", is_on_stdout, {"--json": output.json})  # both write to standard output
    text = reading.text(texts)
    _check_table_path(output.per_token, output.overwrite, text.files)
    language_model = LanguageModel.from_pretrained(model, precision=precision, **vars(opening))
    facts: dict[str, Any] = {"model": model or DEFAULT_MODEL, "texts": [str(path) for path in text.files]}
    result: Perplexity | BilmTfPerplexity
    with ProgressBar("tokens") as progress:
        if output.as_bilm_tf is not None:
            result = language_model.bilm_tf_perplexity(text, output.as_bilm_tf, progress=progress)
        else:
            facts |= {"state": scoring.start or "warm", "documents": reading.documents, "cache": scoring.cache}
            with _table(output.per_token, output.overwrite) as write:
                on_sentence = None if write is None else SentenceRows(write).write
                result = language_model.perplexity(
                    text,
                    start=scoring.start,
                    batch_tokens=batch_tokens,
                    cache=scoring.cache,
                    on_sentence=on_sentence,
                    progress=progress,
                )
    if output.json:
        echo_json(facts | result.to_dict())
    else:
        click.echo(result.to_text(), err=is_on_stdout)
    if warning := unknown_words_warning(result.unknown_ratio, result.unknown_words):
        click.echo(warning, err=True)


def _check_table_path(path: Path | None, overwrite: bool, texts: Sequence[Path]) -> None:
    if path is not None and str(path) != STDIN:
        check_output_path(path, overwrite)
        check_not_input(path, texts)


WriteRow = Callable[[Mapping[str, Any]], object]


@contextlib.contextmanager
def _table(path: Path | None, overwrite: bool, is_quoted: bool = False) -> Iterator[WriteRow | None]:
    """Yield a function that writes a row of the table, or None if there is no ``path``."""
    from elmokit.storage.table_file import TableWriter, open_table

    if path is None:
        yield None
    elif str(path) == STDIN:
        yield TableWriter(_StandardOutput(), is_quoted=is_quoted).write
    else:
        with open_table(path, overwrite, is_quoted) as table:
            yield table.write
        print_note(f"wrote {path}")


class _StandardOutput:
    """Writes a table to standard output."""

    def write(self, text: str, /) -> None:
        click.echo(text, nl=False)


def _named(row: TokenSurprisal | WordSurprisal | RegionSurprisal, bits: bool) -> dict[str, Any]:
    """Return the cells of a row by column name, in nats or bits."""
    cells: dict[str, Any] = {}
    for name, value in row._asdict().items():
        if name == "file" and value is None:  # there is only one file
            continue
        if bits and name.endswith("_nats"):
            name = name.replace("_nats", "_bits")
            if value is not None:
                value = value / math.log(2)
        cells[name] = value
    return cells


@dataclass
class SentenceRows:
    """Writes a row for each token of a sentence."""

    write_row: WriteRow
    bits: bool = False
    n_sentences: int = 0

    def write(self, sentence: Surprisal) -> None:
        """Write the rows of the next sentence. Sentences are numbered from 0, like the rows of ``elmokit embed``."""
        for row in sentence.rows(self.n_sentences):
            self.write_row(_named(row, self.bits))
        self.n_sentences += 1


@dataclass(frozen=True)
class RawText:
    """One raw text from a file."""

    text: str
    known: dict[str, Any]
    """Cells to copy to the output: the table's other columns, or the line number in a file."""
    place: str = ""
    """Its row in a table, for messages."""
    region: str = ""
    """In a table with regions: a part of the text, or two offsets; blank without a region."""


def _read_raw_texts(text: Text, region: str | None) -> Iterable[RawText]:
    """Read raw texts; ``region`` is the table column with regions, if any."""
    passages = text.passages()
    if text.column is not None:
        return list(_read_rows(passages, text, text.column, region))
    return (RawText(one.text, _file_of(one, text) | {"line": one.line}) for one in passages)


def _file_of(passage: RawPassage, text: Text) -> dict[str, Any]:
    return {"file": passage.path} if len(text.files) > 1 else {}


def _read_rows(passages: Iterable[RawPassage], text: Text, column: str, region: str | None) -> Iterator[RawText]:
    """Yield the text of each table row, with the other columns."""
    from elmokit.lm.surprisal import RegionSurprisal, WordSurprisal
    from elmokit.text.columns import find_column

    results = WordSurprisal._fields if region is None else RegionSurprisal._fields
    fields = {*results, *(name.replace("_nats", "_bits") for name in results)}
    for passage in passages:
        file = _file_of(passage, text)
        others = dict(passage.cells)
        names = list(others)
        del others[names[find_column(passage.path, names, column)]]
        region_text = ""
        if region is not None:
            region_column = names[find_column(passage.path, names, region)]
            region_text = passage.cells[region_column].strip()
            others.pop(region_column, None)  # it may be the text column
        taken = others.keys() & {*file, *fields}
        if taken:
            raise TextError(f"{passage.path}: a column of the result has the name {min(taken)!r}, too; rename yours.")
        yield RawText(
            text=passage.text,
            known=file | others,
            place=f"{passage.path}, line {passage.line}",
            region=region_text,
        )


OFFSETS = re.compile(r"(\d+)\s*[:\s]\s*(\d+)")
"""A region as start and end offsets."""


def _locate_regions(texts: Sequence[RawText]) -> dict[int, tuple[int, int]]:
    """Find the region of each text that has one, by text number."""
    from elmokit.lm.surprisal import find_region

    with_region = {number: text for number, text in enumerate(texts) if text.region}
    if not with_region:
        raise TextError("No row has a region.")
    # "10:18" can also be a time of day in the text.
    are_parts = all(text.region in text.text for text in with_region.values())
    regions = {}
    for number, text in with_region.items():
        region: str | tuple[int, int] = text.region
        offsets = OFFSETS.fullmatch(text.region)
        if offsets is not None and not are_parts:
            region = (int(offsets[1]), int(offsets[2]))
        try:
            regions[number] = find_region(text.text, region)
        except TextError as error:
            raise TextError(f"{text.place}: {error}") from None
    return regions


def _write_regions(
    language_model: LanguageModel,
    texts: Sequence[RawText],
    regions: Mapping[int, tuple[int, int]],
    reading: Mapping[str, Any],
    write: WriteRow,
    bits: bool,
) -> UnknownWords:
    """Write one row per region; count the regions and those with unknown words."""
    from elmokit.text.vocabulary import UnknownWords

    unknown = UnknownWords()
    chosen = [texts[number] for number in regions]
    rows = language_model.region_surprisal([one.text for one in chosen], regions.values(), **reading)
    cut: list[str] = []
    for number, one, row in zip(regions, chosen, rows, strict=True):
        write(one.known | _named(row._replace(text_index=number), bits))
        unknown.add([row.region], [row.unknown])
        if row.cuts_word:
            cut.append(f"{one.place}, {row.region!r} in {row.words!r}")
    if cut:
        more = "" if len(cut) <= MAX_NAMED else "; ..."
        click.echo(
            f"Regions that cut a word (only the tokens that they touch are summed): {len(cut):,} of "
            f"{len(rows):,} ({'; '.join(cut[:MAX_NAMED])}{more}).",
            err=True,
        )
    if len(rows) < len(texts):
        click.echo(f"Rows without a region: {len(texts) - len(rows):,} of {len(texts):,}.", err=True)
    return unknown


MAX_NAMED = 10
"""Maximum number of rows named in a message."""


def _write_tokens(
    language_model: LanguageModel, text: Text, cache: bool, write: WriteRow, bits: bool, progress: ProgressBar
) -> UnknownWords:
    """Write one row per token; count the tokens and the unknown ones."""
    from elmokit.text.vocabulary import UnknownWords

    unknown = UnknownWords()
    rows = SentenceRows(write, bits)

    def on_sentence(sentence: Surprisal) -> None:
        rows.write(sentence)
        unknown.add(sentence.tokens[1:-1], sentence.is_unknown[1:-1])

    language_model.perplexity(text, cache=cache, on_sentence=on_sentence, progress=progress)
    return unknown


def _write_words(
    language_model: LanguageModel,
    texts: Iterable[RawText],
    reading: Mapping[str, Any],
    write: WriteRow,
    bits: bool,
    progress: ProgressBar,
) -> UnknownWords:
    """Write one row per word; count the words and the unknown ones."""
    from elmokit.text.vocabulary import UnknownWords

    counter, unknown = StageCounter(progress, "surprisal", None), UnknownWords()
    known: dict[int, dict[str, Any]] = {}  # only of texts that may still have rows to come

    def read() -> Iterator[str]:
        for number, one in enumerate(texts):
            known[number] = one.known
            yield one.text

    present = 0
    for row in language_model.word_surprisal(read(), **reading):
        while present < row.text_index:  # a text may have no words
            del known[present]
            present += 1
        write(known[present] | _named(row, bits))
        unknown.add([row.word], [row.unknown])
        counter()
    if not unknown.n_words:
        raise TextError("No word to score.")
    return unknown


def minimal_pairs(
    files: tuple[str, ...],
    *,
    common: EvaluationOptions,
    published: Path | None = None,
    by_paradigm: bool = False,
    per_pair: OptionalOutput = None,
    tokenizer: Tokenizer = "treebank",
) -> None:
    """Test whether a model prefers acceptable sentences, as in BLiMP.

    FILES are tables (TSV or CSV) with the columns good and bad (raw text), or BLiMP's JSON Lines files with the keys
    sentence_good and sentence_bad. Both can also have a UID (the paradigm) and a linguistics_term (the phenomenon).
    Files can be compressed (.gz, .xz, .zst). Directories are searched for *.jsonl files.

    Sentences are compared by their summed log probabilities, including the sentence end: forward, backward, and both
    added. Ties count as wrong. Accuracies are means over paradigms.

    Args:
        published: Show accuracies of other models from this table (TSV), which has a column UID and a column per model.
        by_paradigm: Show one row per paradigm instead of per phenomenon.
        per_pair (FILE): Write one row per pair, with all columns of its file (TSV; CSV if the name ends in .csv).

    Examples:
        elmokit evaluate minimal-pairs pairs.tsv --per-pair results.tsv
        elmokit evaluate minimal-pairs blimp/
        elmokit evaluate minimal-pairs blimp/*.jsonl --model my-run --published published.tsv
    """
    from elmokit.evaluation.minimal_pairs import (
        evaluate_minimal_pairs,
        read_minimal_pairs,
        read_published_accuracies,
    )
    from elmokit.lm.language_model import LanguageModel
    from elmokit.storage.text_files import find_text_files, or_packed
    from elmokit.text.tokenize import get_tokenizer

    paths = find_text_files(files, reread=True, suffixes=or_packed(".jsonl"))
    _check_table_path(per_pair, common.overwrite, paths)
    other_models = None if published is None else read_published_accuracies(published)
    paradigms = read_minimal_pairs(paths)
    tokenize = get_tokenizer(tokenizer)
    opened = LanguageModel.from_pretrained(common.model, options=common.options, device=common.device)
    with _table(per_pair, common.overwrite, is_quoted=True) as write, ProgressBar("sentences") as progress:
        result = evaluate_minimal_pairs(
            opened.computer, paradigms, tokenize, published=other_models, on_pair=write, progress=progress
        )
    common.show(result, result.table_rows(by_paradigm))


def similarity(
    files: tuple[Path, ...],
    *,
    common: EvaluationOptions,
    columns: tuple[int, ...] | None = None,
    smoothing: tuple[float, ...] = (),
    whiten: tuple[str, ...] = (),
    sentences: int | None = None,
    tokenizer: Tokenizer = "treebank",
) -> None:
    """Compare cosines of vectors with human similarity ratings of sentence or word pairs.

    Each row of FILES has two sentences or words and a score. Files named .csv are CSV, like the STS benchmark; others
    have columns separated by tabs or spaces, like lists of word pairs. A header is skipped.

    Token vectors are pooled in every way: from each layer, their average and all layers concatenated; with equal
    weights (mean) and with less weight for frequent words (sif); and with the model's whitening and trained head, if
    any.

    Args:
        columns (A,B,SCORE): The columns of the two sentences or words and of the score, counted from 1, for files with
            more than three columns.
        smoothing: The constant a of sif: smaller values give frequent words less weight. Can be repeated.
            [default: 0.0003]
        whiten: Tokenized text to fit a whitening on. Can be repeated.
        sentences: Number of sentences to use from each --whiten.  [default: 2000]

    Examples:
        elmokit evaluate similarity sts-dev.csv
        elmokit evaluate similarity wordsim.txt --columns 1,2,4 --tokenizer spaces --model original
    """
    from itertools import islice

    from elmokit.evaluation.similarity import evaluate_similarity, read_scored_pairs
    from elmokit.storage.text_files import check_can_reread, find_text_files
    from elmokit.text.text import Text
    from elmokit.text.tokenize import get_tokenizer

    check_needed("--sentences", sentences is not None, "--whiten", whiten)
    sentences = 2000 if sentences is None else sentences
    check_at_least("--sentences", sentences, 2)
    if columns is not None and (len(columns) != 3 or min(columns) < 1):
        raise ConfigError(
            f"--columns is {','.join(map(str, columns))}; expected three column numbers from 1, such as 1,2,4."
        )
    tokenize = get_tokenizer(tokenizer)
    for path in files:
        check_can_reread(path)
    pairs = {str(path): read_scored_pairs(path, tokenize, columns) for path in files}
    whiten_paths = find_text_files(whiten, reread=True) if whiten else []
    whiten_sentences = [tokens for path in whiten_paths for tokens in islice(Text(path).token_lists(), sentences)]
    elmo = common.open_elmo()
    given = {"smoothings": smoothing} if smoothing else {}
    with ProgressBar("pairs") as progress:
        result = evaluate_similarity(elmo, pairs, whiten=whiten_sentences, progress=progress, **given)
    common.show(result)


@dataclass(frozen=True)
class TaggedColumns:
    """Columns of a tagged file, as arguments of ``read_tagged``."""

    tags: str | None = None
    words: int = 1


@dataclass(frozen=True)
class ProbeTraining:
    """How the part-of-speech probe is trained."""

    seeds: int = 1
    control: bool = False
    sentences: int | None = None
    epochs: int = 5


def pos(
    train: Path,
    test: Path,
    *,
    common: EvaluationOptions,
    columns: TaggedColumns,
    layers: tuple[int, ...] | None = None,
    training: ProbeTraining,
) -> None:
    """Probe for parts of speech with a linear classifier on each layer.

    TRAIN and TEST are CoNLL-U files (.conllu, .conllup), or files of columns separated by spaces or tabs. They can be
    compressed (.gz, .xz, .zst).

    Args:
        tags: The tag column: a column name in CoNLL-U, else a number from 1.  [default: upos, or column 2]
        words: The word column, if the file is not CoNLL-U.
        layers: Layers to probe.  [default: all]
        seeds: Number of training runs; their mean and deviation are shown.
        control: Also run the control task, with a random tag per word. Doubles the time.
        sentences: Train on the first N sentences only.
        epochs: Number of epochs to train the classifier.

    Examples:
        elmokit evaluate pos train.conllu dev.conllu
        elmokit evaluate pos train.conllu dev.conllu --tags xpos --seeds 3 --control
    """
    from elmokit.evaluation.pos import LinearSettings, probe_pos
    from elmokit.evaluation.tagged import read_tagged

    if training.sentences is not None:
        check_at_least("--sentences", training.sentences, 1)
    check_at_least("--seeds", training.seeds, 1)
    settings = LinearSettings(epochs=training.epochs)
    train_text = list(read_tagged(train, **vars(columns)))[: training.sentences]
    test_text = list(read_tagged(test, **vars(columns)))
    elmo = common.open_elmo()
    with ProgressBar("") as progress:
        result = probe_pos(
            elmo,
            train_text,
            test_text,
            layers=layers,
            seeds=range(training.seeds),
            control=training.control,
            settings=settings,
            progress=progress,
        )
    common.show(result)


def wsd(
    train: Path,
    tests: tuple[Path, ...],
    *,
    common: EvaluationOptions,
    inventory: Path | None = None,
    senses: OptionalOutput = None,
    answers: OptionalOutput = None,
) -> None:
    """Probe for word senses by the nearest mean vector in each layer, with official scores.

    TRAIN and TESTS are *.data.xml files of the unified evaluation framework, each next to its *.gold.key.txt, or
    directories with such a pair. They can be compressed (.gz, .xz, .zst). Words that do not occur in TRAIN get the
    first sense of --inventory; without it, they get no answer.

    Args:
        inventory: Ordered senses of each lemma: WordNet's index.sense, or a table of lemma, POS and keys.
        senses: Store the sense means in this file, for later runs.
        answers: Write key files for the official scorer to this directory.

    Examples:
        elmokit evaluate wsd semcor.data.xml senseval3.data.xml
        elmokit evaluate wsd SemCor/ senseval2/ senseval3/ --inventory index.sense --senses means --answers keys
    """
    from elmokit.evaluation.sense_files import find_sense_set, read_inventory
    from elmokit.evaluation.senses import ANSWERS, probe_senses, write_answers
    from elmokit.storage.atomic import check_output_path

    if answers is not None:
        check_output_path(answers, common.overwrite, folder=True, parts=[ANSWERS])
    train_set, test_sets = find_sense_set(train), [find_sense_set(test) for test in tests]
    sense_order = None if inventory is None else read_inventory(inventory)
    elmo = common.open_elmo()
    with resumable_command(lambda: senses is not None), ProgressBar("") as progress:
        result = probe_senses(elmo, train_set, test_sets, sense_order, senses, progress, overwrite=common.overwrite)
    if answers is not None:
        write_answers(result, answers, common.overwrite)
    common.show(result)
