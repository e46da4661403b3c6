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

from elmokit.cli.evaluation_commands import _read_raw_texts
from elmokit.embedding.reading import Corpus
from elmokit.errors import ElmoError
from elmokit.evaluation.probe_corpus import read_corpus_files
from elmokit.lm.language_model import LanguageModel
from elmokit.storage.text_files import read_lines
from elmokit.tasks.run import _lines_of_raw_text, _tokenized_lines
from elmokit.text.shards import SentenceBlocks
from elmokit.text.text import numbered_sentences, split_documents, text_lines
from elmokit.text.tokenize import get_tokenizer, split_tokens, text_splitter
from elmokit.text.vocabulary_files import WordCounts
from tests.helpers.generated_texts import write_texts

N_TEXTS, N_SAMPLED = 3000, 40
DIGESTS = Path(__file__).with_name("readings.json")
Reading = Callable[[Sequence[Path]], Iterator[Any]]
"""Yields what a reader makes of a text and the text after it; most read the first alone."""
RAW = [(language, wrapped) for language in ("en", "any") for wrapped in ("auto", "yes", "no")]


def lines(paths: Sequence[Path], like_bilm_tf: bool) -> Iterator[Any]:
    n_bytes: list[int] = []
    yield from read_lines(paths[0], n_bytes.append, like_bilm_tf)
    yield sum(n_bytes)


def sentences(paths: Sequence[Path], split: Any, like_bilm_tf: bool = False) -> Iterator[Any]:
    n_bytes: list[int] = []
    yield from numbered_sentences(paths[0], n_bytes.append, split, like_bilm_tf)
    yield sum(n_bytes)


def documents(paths: Sequence[Path], split: Any) -> Iterator[Any]:
    for document in split_documents(paths[0], split):
        yield list(document)


def embedded(paths: Sequence[Path], **settings: Any) -> Iterator[Any]:
    corpus = Corpus(paths[0], **settings)
    yield from corpus


def scored(paths: Sequence[Path], split: Any, **settings: Any) -> Iterator[Any]:
    places: list[Any] = []
    texts, total = LanguageModel._sentences(None, paths, count=True, split=split, on_place=places.append, **settings)  # type: ignore[arg-type]
    yield total
    for text in texts:
        yield text if isinstance(text, list) else list(text)
        yield [(file and Path(file).name, line) for file, line in places]
        places.clear()


def predicted(paths: Sequence[Path], tokenization: Any, accepted: Sequence[str], refuse: bool) -> Iterator[Any]:
    return _tokenized_lines(paths[0], accepted, get_tokenizer(tokenization), refuse)


def predicted_raw(paths: Sequence[Path], split: Any) -> Iterator[Any]:
    return _lines_of_raw_text(paths[0], split)


def any_lines(paths: Sequence[Path], accepted: Sequence[str]) -> Iterator[Any]:
    return text_lines(paths[0], accepted=accepted)


def passages(paths: Sequence[Path], column: str | None, region: str | None, **settings: Any) -> Iterator[Any]:
    for text in _read_raw_texts(paths, column, region, **settings):
        known = {name: Path(cell).name if name == "file" else cell for name, cell in text.known.items()}
        yield text.text, known, Path(text.place).name, text.region


def probed(paths: Sequence[Path], **settings: Any) -> Iterator[Any]:
    return read_corpus_files(paths, **settings)


def blocks(paths: Sequence[Path], **settings: Any) -> Iterator[Any]:
    stream = SentenceBlocks(paths, [1], n_epochs=1, **settings)
    try:
        for block in islice(stream, 3):
            yield block.passages
    except RuntimeError:  # the end of the text, from the thread that reads it
        yield "end"
    finally:
        stream.close()


def counted(paths: Sequence[Path], like_bilm_tf: bool) -> Iterator[Any]:
    counts = WordCounts()
    n_bytes: list[int] = []
    counts.add(paths[0], n_bytes.append, like_bilm_tf)
    yield counts.n_sentences, counts.n_tokens, list(counts.items()), sum(n_bytes)


def in_characters(line: str) -> list[str]:
    """Split a line as a function of a user might."""
    return list(line.strip())


in_characters.__module__ = "of_a_user"


def readings() -> dict[str, Reading]:
    """Return every reader in every combination."""
    found: dict[str, Reading] = {
        "lines": partial(lines, like_bilm_tf=False),
        "lines, bilm-tf": partial(lines, like_bilm_tf=True),
        "sentences": partial(sentences, split=None),
        "sentences, bilm-tf": partial(sentences, split=None, like_bilm_tf=True),
        "documents": partial(documents, split=None),
        "embed, fasta": partial(embedded, fasta=True),
        "lm": partial(scored, split=None),
        "lm, documents": partial(scored, split=None, documents=True),
        "lm, bilm-tf": partial(scored, split=None, like_bilm_tf=True),
        "any format": partial(any_lines, accepted=("JSON", "a table")),
        "probe": probed,
        "probe, treebank": partial(probed, tokenize=get_tokenizer("treebank")),
        "blocks": blocks,
        "blocks, bilm-tf": partial(blocks, like_bilm_tf=True, one_by_one=True),
        "blocks, passages": partial(blocks, passage_length=3),
        "blocks, lower case": partial(blocks, lower_case=0.5),
        "counts": partial(counted, like_bilm_tf=False),
        "counts, bilm-tf": partial(counted, like_bilm_tf=True),
    }
    splitters: dict[str, Any] = {
        "tokens": split_tokens,
        "treebank": get_tokenizer("treebank"),
        "white space": str.split,
        "own": in_characters,
    }
    for name, tokenize in splitters.items():
        for strict in (False, True):
            for of_documents in (False, True):
                for tokenized in (False, True):
                    given: dict[str, Any] = {"strict": strict, "documents": of_documents, "tokenized": tokenized}
                    chosen = ", ".join([name, *(key for key, is_given in given.items() if is_given)])
                    found[f"embed, {chosen}"] = partial(embedded, tokenize=tokenize, **given)
    for language, wrapped in RAW:
        how, split = f"raw {language}, wrapped {wrapped}", text_splitter(language, wrapped)
        found[f"sentences, {how}"] = partial(sentences, split=split)
        found[f"documents, {how}"] = partial(documents, split=split)
        found[f"lm, {how}"] = partial(scored, split=split)
        found[f"lm, documents, {how}"] = partial(scored, split=split, documents=True)
        found[f"predict, {how}"] = partial(predicted_raw, split=split)
        found[f"probe, {how}"] = partial(probed, split=split)
        for of_documents in (False, True):
            chosen = f"documents {of_documents}, {how}"
            found[f"embed, {chosen}"] = partial(
                embedded, raw_language=language, wrapped=wrapped, documents=of_documents
            )
    for wrapped in ("auto", "yes", "no"):
        for of_documents in (False, True):
            found[f"words, wrapped {wrapped}, documents {of_documents}"] = partial(
                passages, column=None, region=None, documents=of_documents, wrapped=wrapped
            )
    for column, region in (("text", None), ("text", "critical"), ("TEXT", "item"), ("no", None)):
        found[f"words, column {column}, region {region}"] = partial(
            passages, column=column, region=region, documents=False, wrapped="auto"
        )
    for tokenization in ("spaces", "treebank"):
        for accepted in ((), ("JSON",), ("JSON", "a table")):
            for refuse in (False, True):
                found[f"predict, {tokenization}, {len(accepted)} formats, refuse {refuse}"] = partial(
                    predicted, tokenization=tokenization, accepted=accepted, refuse=refuse
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
