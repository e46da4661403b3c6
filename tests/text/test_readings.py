"""What every reader of text yields for generated texts, in every combination of what can be said about a text.

``readings.json`` has two digests for each combination: of the first texts, which this test compares, and of
thousands, which ``python -m tests.text.test_readings`` compares. With a number of a text after it, the program
prints what each reader yields for that text. With ``--write`` it writes the file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from elmokit.cli.evaluation_commands import _read_raw_texts
from elmokit.embedding.reading import corpus_rows
from elmokit.errors import ElmoError
from elmokit.evaluation.probe_corpus import read_corpus_files
from elmokit.storage.text_files import read_lines, read_lines_like_python
from elmokit.tasks.run import _lines_of_raw_text, _tokenized_lines
from elmokit.text.text import Text, check_has_documents
from elmokit.text.vocabulary_files import WordCounts
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from tests.helpers.generated_texts import write_texts

N_TEXTS, N_SAMPLED = 3000, 40
DIGESTS = Path(__file__).with_name("readings.json")
Reading = Callable[[Sequence[Path]], Iterator[Any]]
"""Yields what a reader makes of a text and the text after it; most read the first alone."""
RAW = [(language, wrapped) for language in ("en", "any") for wrapped in ("auto", "yes", "no")]


def lines(paths: Sequence[Path], read: Callable[..., Iterator[str]]) -> Iterator[Any]:
    n_bytes: list[int] = []
    yield from read(paths[0], n_bytes.append)
    yield sum(n_bytes)


def sentences(paths: Sequence[Path], **settings: Any) -> Iterator[Any]:
    text, n_bytes = Text(paths[0], **settings), [0]
    yield from text._numbered_sentences(paths[0], n_bytes.append)
    yield sum(n_bytes)


def documents(paths: Sequence[Path], **settings: Any) -> Iterator[Any]:
    for document in Text(paths[0], **settings).document_lines():
        yield list(document)


def embedded(paths: Sequence[Path], **settings: Any) -> Iterator[Any]:
    text = Text(paths[0], **settings)
    if text.documents:
        check_has_documents(paths[0])
    yield from corpus_rows(text)


def scored(paths: Sequence[Path], documents: bool = False, **settings: Any) -> Iterator[Any]:
    text = Text(paths, **settings)
    yield text.n_predictions()
    groups = text.document_sentences() if documents else ([sentence] for sentence in text.sentences())
    for group in map(list, groups):
        yield group if documents else group[0]
        yield [(one.file and Path(one.file).name, one.line) for one in group]


def scored_as_bilm_tf(paths: Sequence[Path]) -> Iterator[Any]:
    text = Text(paths[::-1], kind="bilm-tf")
    yield text.n_predictions()
    for tokens in text.token_lists():
        yield tokens
        yield []


def predicted(paths: Sequence[Path], formats: Sequence[str], **settings: Any) -> Iterator[Any]:
    text = Text(paths[0], **settings)
    return _tokenized_lines(text, formats, text.split)


def predicted_raw(paths: Sequence[Path], **settings: Any) -> Iterator[Any]:
    return _lines_of_raw_text(Text(paths[0], "raw", **settings))


def any_lines(paths: Sequence[Path], formats: Sequence[str]) -> Iterator[Any]:
    return Text(paths[0]).numbered_lines(paths[0], formats=formats)


def passages(paths: Sequence[Path], column: str | None = None, region: str | None = None, **how: Any) -> Iterator[Any]:
    for path in paths:
        if path.suffix in (".conllu", ".conllup") or path.name.endswith(".conllu.gz"):
            yield "TextError"  # of the command
            return
    for text in _read_raw_texts(Text(paths, "words", column=column, **how), region):
        known = {name: Path(cell).name if name == "file" else cell for name, cell in text.known.items()}
        yield text.text, known, Path(text.place).name, text.region


def probed(paths: Sequence[Path], **settings: Any) -> Iterator[Any]:
    return read_corpus_files(Text(paths, **settings))


def blocks(paths: Sequence[Path], kind: Any = "tokens", **settings: Any) -> Iterator[Any]:
    stream = SentenceBlocks(Text(paths, kind), ReadingOrder(seed=1, n_epochs=1, **settings))
    try:
        for block in islice(stream, 3):
            yield block.passages
    except RuntimeError:  # the end of the text, from the thread that reads it
        yield "end"
    finally:
        stream.close()


def counted(paths: Sequence[Path], kind: Any) -> Iterator[Any]:
    counts = WordCounts()
    n_bytes: list[int] = []
    counts.add(Text(paths[0], kind), n_bytes.append)
    yield counts.n_sentences, counts.n_tokens, list(counts.items()), sum(n_bytes)


def in_characters(line: str) -> list[str]:
    """Split a line as a function of a user might."""
    return list(line.strip())


in_characters.__module__ = "of_a_user"


def readings() -> dict[str, Reading]:
    """Return every reader in every combination."""
    found: dict[str, Reading] = {
        "lines": partial(lines, read=read_lines),
        "lines, bilm-tf": partial(lines, read=read_lines_like_python),
        "sentences": sentences,
        "sentences, bilm-tf": partial(sentences, kind="bilm-tf"),
        "documents": documents,
        "embed, fasta": partial(embedded, kind="fasta"),
        "lm": scored,
        "lm, documents": partial(scored, documents=True),
        "lm, bilm-tf": scored_as_bilm_tf,
        "any format": partial(any_lines, formats=("JSON", "a table")),
        "probe": probed,
        "probe, treebank": partial(probed, kind="lines"),
        "blocks": blocks,
        "blocks, bilm-tf": partial(blocks, kind="bilm-tf", one_by_one=True),
        "blocks, passages": partial(blocks, passage_length=3),
        "blocks, lower case": partial(blocks, lower_case=0.5),
        "counts": partial(counted, kind="tokens"),
        "counts, bilm-tf": partial(counted, kind="bilm-tf"),
        "embed, white space, strict": partial(embedded, kind="allennlp"),
        "embed, white space, strict, documents": partial(embedded, kind="allennlp", documents=True),
    }
    kinds: dict[str, Any] = {"tokens": "tokens", "treebank": "lines", "white space": str.split, "own": in_characters}
    for name, kind in kinds.items():
        for of_documents in (False, True):
            for tokenized in (False, True):
                given = {"documents": of_documents, "tokenized": tokenized}
                chosen = ", ".join([name, *(key for key, is_given in given.items() if is_given)])
                # What splits at any white space is of an old program, which read what it was given.
                refuses = not tokenized and kind is not str.split
                found[f"embed, {chosen}"] = partial(embedded, kind=kind, documents=of_documents, refuse_raw=refuses)
    for language, wrapped in RAW:
        settings = {"kind": "raw", "language": language, "wrapped": wrapped}
        how = f"raw {language}, wrapped {wrapped}"
        found[f"sentences, {how}"] = partial(sentences, **settings)
        found[f"documents, {how}"] = partial(documents, **settings)
        found[f"lm, {how}"] = partial(scored, **settings)
        found[f"lm, documents, {how}"] = partial(scored, documents=True, **settings)
        found[f"predict, {how}"] = partial(predicted_raw, language=language, wrapped=wrapped)
        found[f"probe, {how}"] = partial(probed, **settings)
        for of_documents in (False, True):
            chosen = f"documents {of_documents}, {how}"
            found[f"embed, {chosen}"] = partial(embedded, documents=of_documents, **settings)
    for wrapped in ("auto", "yes", "no"):
        for of_documents in (False, True):
            found[f"words, wrapped {wrapped}, documents {of_documents}"] = partial(
                passages, documents=of_documents, wrapped=wrapped
            )
    for column, region in (("text", None), ("text", "critical"), ("TEXT", "item"), ("no", None)):
        found[f"words, column {column}, region {region}"] = partial(passages, column=column, region=region)
    for tokenization, kind in (("spaces", "tokens"), ("treebank", "lines")):
        for formats in ((), ("JSON",), ("JSON", "a table")):
            for refuse in (False, True):
                found[f"predict, {tokenization}, {len(formats)} formats, refuse {refuse}"] = partial(
                    predicted, formats=formats, kind=kind, refuse_raw=refuse
                )
    return found


def outcome(reading: Reading, paths: Sequence[Path]) -> list[Any]:
    """Return what a reader yields, the class of the error that ends it, and the kinds of its warnings."""
    records: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            records.extend(reading(paths))
        except ElmoError as error:
            records.append(type(error).__name__)
    texts = {str(warning.message) for warning in caught}
    kinds = ("raw text", "are wrapped", "one by one", "entities")
    return [*records, [kind for kind in kinds if any(kind in text for text in texts)]]


def digests(paths: Sequence[Path]) -> dict[str, str]:
    """Return one digest for each combination of what it yields for all texts."""
    found = {}
    for name, reading in readings().items():
        digest = hashlib.blake2b(digest_size=8)
        for pair in zip(paths, [*paths[1:], paths[0]], strict=True):
            digest.update(json.dumps(outcome(reading, pair)).encode())
        found[name] = digest.hexdigest()
    return found


@pytest.mark.slow
def test_every_reader_yields_the_same_sentences_as_before(tmp_path: Path) -> None:
    frozen = {name: sampled for name, (sampled, _) in json.loads(DIGESTS.read_text()).items()}
    found = digests(write_texts(tmp_path, N_SAMPLED))
    assert {name for name in frozen if found[name] != frozen[name]} == set()
    assert found.keys() == frozen.keys()


def _show(number: int, folder: Path) -> None:
    paths = write_texts(folder, number + 2)[number:]
    print(json.dumps([path.name for path in paths]))
    for name, reading in readings().items():
        print(name, json.dumps(outcome(reading, paths)))


def _main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:] and sys.argv[1].isdecimal():
            _show(int(sys.argv[1]), Path(folder))
            return 0
        paths = write_texts(Path(folder), N_TEXTS)
        sampled, every = digests(paths[:N_SAMPLED]), digests(paths)
    both = {name: [sampled[name], every[name]] for name in sampled}
    if "--write" in sys.argv:
        DIGESTS.write_text(json.dumps(both, indent=0) + "\n")
    frozen = json.loads(DIGESTS.read_text())
    changed = sorted(name for name in frozen.keys() | both.keys() if frozen.get(name) != both.get(name))
    print("\n".join(changed) or f"{len(both)} combinations, {N_TEXTS:,} texts: as before")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(_main())
