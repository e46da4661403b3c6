"""A modified Kneser-Ney 5-gram over a vocabulary, trained and tested on the same text as a biLM.

    python benchmarks/ngram_baseline.py --kenlm build/bin --vocabulary vocab.txt --work scratch \\
        --train 'corpus/train-*.txt.xz' --test a/test.txt.xz --test b/test.txt.xz

The estimator is KenLM's ``lmplz`` (unpruned, interpolated; Heafield et al. 2013), its binaries built from the source
package on PyPI::

    pip download --no-deps --no-binary :all: kenlm && tar xzf kenlm-*.tar.gz      # needs cmake, g++ and Boost
    cmake -S kenlm-* -B build -DCMAKE_BUILD_TYPE=Release && make -C build lmplz build_binary query

The same predictions count as in ``elmokit perplexity``: every token of a sentence and its end, so n + 1 for n tokens.
Words outside the vocabulary are one word of their own, ``UNKNOWN``, in training and in testing; a sentence's start is
given. With ``--backward`` a second model reads every sentence from its end. Models stay in the work folder and are used
again.

Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from elmokit.io.text_files import find_text_files, read_sentences
from elmokit.text.vocabulary import SPECIALS, Vocabulary

ORDER = 5
UNKNOWN_WORD = "<<unknown>>"  # KenLM takes <unk> for words that it never saw, and no text may hold it
OTHER_SPELLING = {word: f"<{word}>" for word in ("<unk>", "<UNK>", "<s>", "</s>")}  # in texts they are words


def mapped(texts: Iterable[Path], known: set[str], backward: bool) -> Iterator[bytes]:
    """Lines for KenLM, words outside the vocabulary replaced."""
    for path in texts:
        for tokens in read_sentences(path):
            words = [OTHER_SPELLING.get(word, word) if word in known else UNKNOWN_WORD for word in tokens]
            yield (" ".join(reversed(words) if backward else words) + "\n").encode()


def feed(command: list[str], lines: Iterable[bytes], log: Path) -> str:
    """Run a program with lines on its standard input: its standard output."""
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # a program that failed says why in its log
            process.stdin.writelines(lines)
        output = process.stdout.read().decode()
        if process.wait():
            raise SystemExit(f"{command[0]} failed; see {log}")
    return output


def trained(kenlm: Path, work: Path, texts: list[Path], known: set[str], backward: bool, memory: str) -> Path:
    """The model's file; trained if it does not stand in the work folder yet."""
    content = "\n".join([*sorted(known), *(f"{path.resolve()} {path.stat().st_size}" for path in texts)])
    name = f"{'backward' if backward else 'forward'}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    model, arpa, half = (work / f"{name}.{suffix}" for suffix in ("binary", "arpa", "half"))
    if not model.exists():
        lmplz = [str(kenlm / "lmplz"), "-o", str(ORDER), "-S", memory, "-T", f"{work}/", "--arpa", str(arpa)]
        # A closed vocabulary has no rare words, from which the discounts of unigrams would be estimated; the fallback
        # (0.5, 1, 1.5) touches that order alone, where every count is large.
        lmplz.append("--discount_fallback")
        feed(lmplz, mapped(texts, known, backward), work / f"{name}.lmplz.log")
        build = [str(kenlm / "build_binary"), "-S", memory, "-T", f"{work}/", "probing", str(arpa), str(half)]
        feed(build, (), work / f"{name}.build.log")
        arpa.unlink()
        half.rename(model)
    return model


def nats(kenlm: Path, work: Path, model: Path, text: Path, known: set[str], backward: bool) -> tuple[float, int]:
    """Mean nats per prediction, and the number of predictions."""
    command = [str(kenlm / "query"), "-v", "summary", "-l", "lazy", str(model)]
    printed = feed(command, mapped([text], known, backward), work / "query.log")
    values = dict(line.split(":\t") for line in printed.splitlines() if ":\t" in line)
    if int(values["OOVs"]):
        raise SystemExit(
            f"{values['OOVs']} tokens of {text} are in the vocabulary but not in the training text: the n-gram model "
            "knows nothing of them. Make the vocabulary from the training text: elmokit vocab"
        )
    return math.log(float(values["Perplexity including OOVs"])), int(values["Tokens"])


def main() -> None:
    """Train, test and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kenlm", type=Path, required=True, help="folder of lmplz, build_binary and query")
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="for the models, some GB")
    parser.add_argument("--train", action="append", required=True)
    parser.add_argument("--test", action="append", required=True, type=Path)
    parser.add_argument("--backward", action="store_true", help="a model of each direction")
    parser.add_argument("--memory", default="2G", help="for sorting")
    arguments = parser.parse_args()

    vocabulary = Vocabulary.from_file(arguments.vocabulary)
    known = {word for word in vocabulary.words if word not in SPECIALS}
    texts = find_text_files(arguments.train, reread=True)
    arguments.work.mkdir(parents=True, exist_ok=True)
    directions = (False, True) if arguments.backward else (False,)
    models = [
        trained(arguments.kenlm, arguments.work, texts, known, backward, arguments.memory) for backward in directions
    ]
    names = " | ".join("backward" if backward else "forward" for backward in directions)
    print(f"| text | words in the vocabulary | predictions | unknown words | {names} |")
    print("|---" * (4 + len(directions)) + "|")
    for test in arguments.test:
        results = [
            nats(arguments.kenlm, arguments.work, model, test, known, backward)
            for backward, model in zip(directions, models, strict=True)
        ]
        tokens = [token for sentence in read_sentences(test) for token in sentence]
        unknown = sum(token not in known for token in tokens) / len(tokens)
        values = " | ".join(f"{math.exp(value):.2f}" for value, _ in results)
        name = "/".join(test.parts[-2:])
        print(f"| {name} | {len(vocabulary):,} | {results[0][1]:,} | {unknown:.1%} | {values} |", flush=True)


if __name__ == "__main__":
    main()
