"""Sound files with unsound numbers: NaN, infinity, huge and tiny weights, zeros, and scales of zero.

A damaged byte rarely makes such a number, and a training that diverges makes nothing else. A model of them is refused
in one line, or it computes finite numbers, the same ones as the plain formulas in NumPy where nothing overflows.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo, LanguageModel, SentenceEmbedder, SentencePooling
from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import boundary_state
from elmokit.engine.precision import NAMES
from elmokit.errors import ElmoError
from elmokit.formats.save import save_model
from elmokit.pretrained.letter_model import N_SYMBOLS, LetterModel
from elmokit.pretrained.model import Weights
from elmokit.pretrained.sentence_pooling import SentenceHead
from elmokit.serve.examples import SENTENCES
from tests.campaign.commands import text
from tests.campaign.interruptions import Outcome, Step, in_parallel
from tests.conftest import aligned_model, random_model
from tests.helpers.children import Ended, Limits, run_child

Array = NDArray[Any]

N_CHANGES = 3_000
LIMITS = Limits(seconds=600, cpu_seconds=60, memory=2 << 30)
VALUES = (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e30, -1e20, 1e10, 1e4, -100.0, 1e-10, 1e-38, 1e-45, 0.0, -0.0)
FACTORS = (0.0, -1.0, 1e-40, 1e-20, 1e-4, 10.0, 1e4, 1e10, 1e20, 1e38)
MODEST = 1e3
"""Up to this factor or value, a wrong formula differs by more than rounding, which large weights amplify."""
LINES = [line.split() for line in text(12).splitlines()]


class RandomChange:
    """Changes one tensor of a file: a number, the first row, or all of it."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.seen: list[str] = []
        self.target: str | None = None
        self.is_modest = True
        self.how = "nothing"

    def choose(self, names: list[str]) -> None:
        """Choose the tensor."""
        self.target = self.random.choice(sorted(names))

    def __call__(self, name: str, array: Array) -> Array:
        """Return the numbers of a tensor, changed if it is the chosen one."""
        if name != self.target or not array.size:
            return array
        changed = np.array(array)
        if changed.dtype.kind not in "fiu":
            return array
        index: Any = self.random.choice(("one", "row", "all"))
        where = {"one": (self.random.randrange(changed.size),), "row": (0,), "all": ()}[index]
        numbers = changed.reshape(-1) if index == "one" else changed  # a view
        if changed.dtype.kind == "f" and self.random.random() < 0.5:
            factor = self.random.choice(FACTORS)
            self.is_modest = abs(factor) <= MODEST
            self.how = f"{index} of {name} times {factor}"
            with np.errstate(over="ignore", invalid="ignore"):
                numbers[where] = (numbers[where].astype(np.float64) * factor).astype(changed.dtype)
        elif changed.dtype.kind == "f":
            value = self.random.choice(VALUES)
            self.is_modest = bool(abs(value) <= MODEST)
            self.how = f"{index} of {name} is {value}"
            with np.errstate(over="ignore"):
                numbers[where] = value
        else:
            # Integers are weights, or the upper halves of float32 numbers.
            bits = self.random.choice((0, 1, 0x7F, 0x80, 0xFF, 0x7F80, 0x7FC0, 0xFF80, 0x7F7F, 0x8000))
            self.is_modest = False
            self.how = f"{index} of {name} has the bits {bits:#x}"
            largest = 0xFF if changed.itemsize == 1 else 0xFFFF
            numbers[where] = np.array(bits & largest, np.uint32).astype(changed.dtype)
        return changed


def change_safetensors(path: Path, change: RandomChange) -> None:
    """Change a tensor of a safetensors file in place."""
    data = bytearray(path.read_bytes())
    n_header = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n_header])
    header.pop("__metadata__", None)
    dtypes = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "<i1", "F64": "<f8"}
    change.choose(list(header))
    for name, entry in header.items():
        start, stop = (8 + n_header + offset for offset in entry["data_offsets"])
        array = np.frombuffer(bytes(data[start:stop]), dtypes[entry["dtype"]]).reshape(entry["shape"])
        data[start:stop] = change(name, array).tobytes()
    path.write_bytes(data)


def change_hdf5(path: Path, change: RandomChange) -> None:
    """Change a dataset of an HDF5 file in place."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        change.choose(names)
        for name in names:
            file[name][...] = change(name, file[name][()])


def own_format(storage: Any, extras: bool) -> Callable[[Path, RandomChange], None]:
    """Return a function that writes an elmokit directory and changes one of its files."""

    def write(folder: Path, change: RandomChange) -> None:
        if not (folder / "model").exists():
            model = aligned_model() if extras else random_model()
            if extras:
                sentences = [sentence.split() for sentence in SENTENCES]
                model = SentenceEmbedder(Elmo(model)).fit(sentences, 8).elmo.model
                assert model.vocabulary is not None
                weights = np.linspace(0.5, 2, len(model.vocabulary), dtype=np.float32)
                of_sif = SentencePooling(), model.whitening.mean, model.whitening.projection
                model = model.replace(sentence_head=SentenceHead(*of_sif, weights))
                model = model.replace(letters=random_letters())
                model = model.replace(start_state=boundary_state(Computer(model)))
            save_model(model, folder / "model", storage)
        change_safetensors(change.random.choice(sorted((folder / "model").glob("*.safetensors"))), change)

    return write


def random_letters() -> LetterModel:
    """Return a letter model with random weights."""
    rng = np.random.default_rng(1)
    shapes = [(N_SYMBOLS, 4), (8, 12), (8,), (4, 8), (N_SYMBOLS,)]
    return LetterModel(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))


def published(folder: Path, change: RandomChange) -> None:
    """Write weights in the published HDF5 format and change one of them."""
    save_model(random_model(), folder / "model" / "weights.hdf5")
    change_hdf5(folder / "model" / "weights.hdf5", change)


WRITERS: dict[str, Callable[[Path, RandomChange], None]] = {
    "own format, start state, whitening, alignment": own_format("float32", extras=True),
    "own format in int8": own_format("int8", extras=False),
    "published HDF5": published,
}


def use_model(model: str, backends: tuple[str, ...]) -> None:
    """Compute all that a model can with each backend, and store the vectors; print one line if it is refused."""
    warnings.filterwarnings("ignore", ".* has no stored start state")
    for backend in backends:
        os.environ["ELMOKIT_BACKEND"] = backend if backend == "reference" else "auto"
        precision: Any = None if backend == "reference" else backend
        try:
            elmo = Elmo.from_pretrained(model, precision=precision)
            results = _results(elmo, backend)
        except ElmoError as error:
            print(f"elmokit: {error}", file=sys.stderr)
            continue
        if not all(np.isfinite(result).all() for result in results):
            raise ValueError(f"{backend}: results have NaN or infinity")
        if backend == "reference":
            with contextlib.suppress(ElmoError):
                np.savez("nudged.npz", *_nudged(elmo).embed(LINES))


def _nudged(elmo: Elmo) -> Elmo:
    """Return the same model with each weight replaced by the next larger number of float32."""
    model = elmo.model
    arrays = {name: np.nextafter(array, np.float32(np.inf)) for name, array in model.arrays.items()}
    return Elmo(model.replace(weights=Weights(model.config, arrays)))


def _results(elmo: Elmo, backend: str) -> list[Array]:
    results = elmo.embed(LINES)
    np.savez(f"{backend}.npz", *results)
    results.append(SentenceEmbedder.by_name(elmo, "mean").embed(LINES[1:4]))
    if elmo.model.whitening is not None:
        results.append(SentenceEmbedder.by_name(elmo, "whitened").embed(LINES[1:4]))
    if elmo.model.sentence_head is not None:
        results.append(SentenceEmbedder.by_name(elmo, "trained").embed(LINES[1:4]))
    if elmo.model.softmax is not None:
        language_model = LanguageModel(elmo.model)
        for found in language_model.surprisal(LINES[1:4]):
            results += [np.asarray(found.total_nats), np.asarray(found.spelling_nats)]
        words = language_model.substitutes(LINES[3], 1, "both", 3)
        results.append(np.array([word.probability for word in words]))
    return results


def try_change(name: str, number: int, folder: Path) -> list[str]:
    """Change a tensor, compute with several precisions and the plain formulas, and return what is wrong."""
    folder.mkdir()
    change = RandomChange(f"{name} {number}")
    WRITERS[name](folder, change)
    # Always in float32 and by the formulas, which are compared, and in one other precision.
    backends = ("reference", "float32", NAMES[1 + number % (len(NAMES) - 1)])
    problem = _judge(run_child(use_model, "model", backends, folder=folder, limits=LIMITS), len(backends))
    files = [folder / f"{name}.npz" for name in ("reference", "float32", "nudged")]
    if problem is None and change.is_modest and all(file.exists() for file in files):
        problem = _compare(*files)
    shutil.rmtree(folder)
    return [f"{name}, change {number}, {change.how}: {problem}"] if problem else []


def _judge(ended: Ended, n_backends: int) -> str | None:
    if ended.timed_out:
        return "did not end"
    lines = ended.err.splitlines()
    is_clean = all(line.startswith("elmokit: ") for line in lines) and len(lines) <= n_backends
    if ended.code or not is_clean or "Out of memory" in ended.err:
        return f"ended with {ended.code}: {ended.err[-1000:]}"
    return None


def _compare(reference: Path, computed: Path, nudged: Path) -> str | None:
    with np.load(reference) as expected, np.load(computed) as found, np.load(nudged) as moved:
        for name in expected.files:
            # With weights ten times as large, a rounding error may grow threefold with each token. How far it gets, one
            # sees when all weights move by one unit in their last place; a sum of many terms rounds by several.
            largest = max(1.0, float(np.abs(expected[name]).max(initial=0)))
            carried = float(np.abs(moved[name] - expected[name]).max(initial=0))
            bound = max(1e-4 * largest, 20 * carried)
            if not np.allclose(found[name], expected[name], rtol=0, atol=bound):
                return (
                    f"differs from the formulas by {np.abs(found[name] - expected[name]).max():.2g} (bound {bound:.2g})"
                )
    return None


def try_changes(name: str, work: Path, scale: float) -> Outcome:
    """Change tensors of a format in many ways."""
    n = max(5, round(N_CHANGES * scale / len(WRITERS)))
    return n, in_parallel(lambda number: try_change(name, number, work / str(number)), range(n)), ""


STEPS: dict[str, Step] = {name: partial(try_changes, name) for name in WRITERS}
