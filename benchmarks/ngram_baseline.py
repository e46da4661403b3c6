"""Train and evaluate a modified Kneser-Ney 5-gram model on the text and vocabulary of a biLM.

    python benchmarks/ngram_baseline.py --kenlm build/bin --vocabulary vocab.txt --work scratch \\
        --train 'corpus/train-*.txt.xz' --test a/test.txt.xz --test b/test.txt.xz

The model is estimated by KenLM's ``lmplz`` (unpruned, interpolated; Heafield et al. 2013). Build its binaries from the
source package on PyPI::

    pip download --no-deps --no-binary :all: kenlm && tar xzf kenlm-*.tar.gz      # needs cmake, g++ and Boost
    cmake -S kenlm-* -B build -DCMAKE_BUILD_TYPE=Release && make -C build lmplz build_binary query

Predictions are counted as in ``elmokit evaluate perplexity``: every token and the end of each sentence, so n + 1 for n
tokens. The start of a sentence is given. Words outside the vocabulary are replaced with ``UNKNOWN_WORD`` in training
and test text. With ``--backward``, a second model reads every sentence from its end. Models are kept in the working
directory and reused.

The script prints a Markdown table.
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
UNKNOWN_WORD = "<<unknown>>"  # KenLM reserves <unk> for words that are not in its training text
# KenLM rejects text with these words, which occur as ordinary tokens in some corpora.
ESCAPED_WORDS = {word: f"<{word}>" for word in ("<unk>", "<UNK>", "<s>", "</s>")}


def kenlm_lines(texts: Iterable[Path], known: set[str], backward: bool) -> Iterator[bytes]:
    """Yield the lines of texts for KenLM, with unknown words replaced."""
    for path in texts:
        for tokens in read_sentences(path):
            words = [ESCAPED_WORDS.get(word, word) if word in known else UNKNOWN_WORD for word in tokens]
            yield (" ".join(reversed(words) if backward else words) + "\n").encode()


def run_with_input(command: list[str], lines: Iterable[bytes], log: Path) -> str:
    """Run a program with lines on its standard input, and return its standard output."""
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # if the program failed, its log has the reason
            process.stdin.writelines(lines)
        output = process.stdout.read().decode()
        if process.wait():
            raise SystemExit(f"{command[0]} failed. Its messages are in {log}.")
    return output


def train_model(kenlm: Path, work: Path, texts: list[Path], known: set[str], backward: bool, memory: str) -> Path:
    """Return the path of the model's file. Train the model if the file does not exist."""
    content = "\n".join([*sorted(known), *(f"{path.resolve()} {path.stat().st_size}" for path in texts)])
    name = f"{'backward' if backward else 'forward'}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    model, arpa, half = (work / f"{name}.{suffix}" for suffix in ("binary", "arpa", "half"))
    if not model.exists():
        lmplz = [str(kenlm / "lmplz"), "-o", str(ORDER), "-S", memory, "-T", f"{work}/", "--arpa", str(arpa)]
        # lmplz estimates the discounts of unigrams from rare words, and a closed vocabulary has none. The fallback
        # (0.5, 1, 1.5) is used for that order only, where every count is large and discounts matter little.
        lmplz.append("--discount_fallback")
        run_with_input(lmplz, kenlm_lines(texts, known, backward), work / f"{name}.lmplz.log")
        build = [str(kenlm / "build_binary"), "-S", memory, "-T", f"{work}/", "probing", str(arpa), str(half)]
        run_with_input(build, (), work / f"{name}.build.log")
        arpa.unlink()
        half.rename(model)
    return model


def mean_nats(kenlm: Path, work: Path, model: Path, text: Path, known: set[str], backward: bool) -> tuple[float, int]:
    """Return the mean nats per prediction and the number of predictions."""
    command = [str(kenlm / "query"), "-v", "summary", "-l", "lazy", str(model)]
    printed = run_with_input(command, kenlm_lines([text], known, backward), work / "query.log")
    values = dict(line.split(":\t") for line in printed.splitlines() if ":\t" in line)
    if int(values["OOVs"]):
        raise SystemExit(
            f"{values['OOVs']} tokens of {text} are in the vocabulary but not in the training text, so the n-gram "
            "model has no probability for them. Build the vocabulary from the training text with elmokit vocab."
        )
    return math.log(float(values["Perplexity including OOVs"])), int(values["Tokens"])


def main() -> None:
    """Train the models, evaluate them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kenlm", type=Path, required=True, help="directory with lmplz, build_binary and query")
    parser.add_argument("--vocabulary", type=Path, required=True, help="vocabulary file")
    parser.add_argument("--work", type=Path, required=True, help="working directory for the models (several GB)")
    parser.add_argument("--train", action="append", required=True, help="training text; can be repeated")
    parser.add_argument("--test", action="append", required=True, type=Path, help="test text; can be repeated")
    parser.add_argument("--backward", action="store_true", help="also train a backward model")
    parser.add_argument("--memory", default="2G", help="memory that lmplz uses for sorting  [default: 2G]")
    arguments = parser.parse_args()

    vocabulary = Vocabulary.from_file(arguments.vocabulary)
    known = {word for word in vocabulary.words if word not in SPECIALS}
    texts = find_text_files(arguments.train, reread=True)
    arguments.work.mkdir(parents=True, exist_ok=True)
    directions = (False, True) if arguments.backward else (False,)
    models = [
        train_model(arguments.kenlm, arguments.work, texts, known, backward, arguments.memory)
        for backward in directions
    ]
    names = " | ".join("backward" if backward else "forward" for backward in directions)
    print(f"| text | words in the vocabulary | predictions | unknown words | {names} |")
    print("|---" * (4 + len(directions)) + "|")
    for test in arguments.test:
        results = [
            mean_nats(arguments.kenlm, arguments.work, model, test, known, backward)
            for backward, model in zip(directions, models, strict=True)
        ]
        tokens = [token for sentence in read_sentences(test) for token in sentence]
        unknown = sum(token not in known for token in tokens) / len(tokens)
        values = " | ".join(f"{math.exp(value):.2f}" for value, _ in results)
        name = "/".join(test.parts[-2:])
        print(f"| {name} | {len(vocabulary):,} | {results[0][1]:,} | {unknown:.1%} | {values} |", flush=True)


if __name__ == "__main__":
    main()
