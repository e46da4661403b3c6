"""Sound files of every format that elmokit reads, and the command that reads them."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np

from elmokit.formats.save import save_model
from tests.campaign.commands import ALL_COMMANDS, COMMANDS, text, write_pairs
from tests.campaign.interruptions import LIMITS, Outcome, Step, commit_always, fail_at, in_parallel, run_straight
from tests.campaign.mutants import damage
from tests.conftest import random_model
from tests.helpers import allennlp_configs
from tests.helpers.children import Ended, Limits, run_elmokit
from tests.helpers.many_langs_files import toy_model
from tests.helpers.paths import DATA
from tests.helpers.sense_files import INVENTORY, TEST, TRAIN, write_set
from tests.helpers.task_examples import TEXTS, write_config
from tests.helpers.tf_hub_files import write_module
from tests.helpers.tf_names import module_tensors
from tests.helpers.wave_model import CONFIG

N_MUTANTS = 20_000
MUTANT_LIMITS = Limits(seconds=1800, cpu_seconds=60, memory=2 << 30)


@dataclass(frozen=True)
class Specimen:
    """Sound files, and a command that reads them.

    Attributes:
        name: What the tests call it.
        write: Writes the files to a directory.
        damaged: Patterns of the files to damage.
        command: The arguments that read them.
        share: The number of mutants relative to that of other specimens, for commands that take long.
    """

    name: str
    write: Callable[[Path], None]
    damaged: tuple[str, ...]
    command: tuple[str, ...]
    share: float = 1.0

    def run(self, folder: Path) -> Ended:
        """Run the command in a directory with the files."""
        return run_elmokit(*self.command, folder=folder, before=commit_always, limits=MUTANT_LIMITS)

    def prepare(self, folder: Path) -> None:
        """Write the files to a new directory, and check that the command reads a copy of them."""
        folder.mkdir()
        self.write(folder)
        used = folder.with_name(f"{folder.name}-used")
        shutil.copytree(folder, used, symlinks=True)
        ended = self.run(used)
        assert ended.code == 0, f"{self.name}: {ended.err}"
        shutil.rmtree(used)

    def try_mutant(self, sound: Path, number: int, folder: Path) -> list[str]:
        """Damage one file, run the command, and return what is wrong with its reaction, if anything is.

        Args:
            sound: The directory that ``prepare`` wrote.
            number: The seed of the damage.
            folder: A new directory for the damaged files, which is deleted.
        """
        shutil.copytree(sound, folder, symlinks=True)
        random = Random(f"{self.name} {number}")
        files = sorted(path for pattern in self.damaged for path in folder.glob(pattern) if path.is_file())
        path = random.choice(files)
        how = damage(path, random)
        problem = judge(self.run(folder))
        shutil.rmtree(folder)
        return [f"{self.name}, mutant {number}, {path.relative_to(folder)}, {how}: {problem}"] if problem else []

    def try_mutants(self, work: Path, scale: float) -> Outcome:
        """Damage the files in many ways."""
        n = max(1, round(self.share * N_MUTANTS * scale / len(SPECIMENS)))
        self.prepare(work / "sound")
        failures = in_parallel(lambda number: self.try_mutant(work / "sound", number, work / str(number)), range(n))
        return n, failures, ""


def judge(ended: Ended) -> str | None:
    """Return what is wrong with how a command ended: it may succeed, or end with code 2 and one line of error."""
    if ended.timed_out:
        return "did not end"
    if ended.code not in (0, 2) or "Traceback" in ended.err:
        return f"ended with {ended.code}: {ended.err}"
    lines = [line for line in ended.err.splitlines() if line.startswith("elmokit: ")]
    errors = [line for line in lines if not line.startswith("elmokit: warning: ")]
    if len(errors) != (1 if ended.code else 0):
        return f"{len(errors)} lines of error and exit code {ended.code}: {ended.err}"
    return None


def small_model(**sizes: Any) -> Any:
    return random_model(replace(CONFIG, **sizes))


def write_text(folder: Path) -> None:
    (folder / "text.txt").write_text(text(8), encoding="utf-8")


def own_format(folder: Path) -> None:
    write_text(folder)
    save_model(small_model(), folder / "model")


def published(folder: Path, name: str = "elmo") -> None:
    write_text(folder)
    save_model(small_model(), folder / name / "weights.hdf5")


def tf_checkpoint(folder: Path) -> None:
    write_text(folder)
    shutil.copytree(DATA / "bilm-tf-run", folder / "model", ignore=shutil.ignore_patterns("*.hdf5", "*.json"))
    shutil.copy(DATA / "bilm-tf-run" / "options.json", folder / "model")


def tf_hub(folder: Path) -> None:
    write_text(folder)
    write_module(folder / "model", module_tensors(small_model()))


def zip_archive(folder: Path) -> None:
    published(folder)
    with zipfile.ZipFile(folder / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((folder / "elmo").iterdir()):
            archive.write(path, path.name)
    shutil.rmtree(folder / "elmo")


def many_langs(folder: Path) -> None:
    write_text(folder)
    toy_model().write(folder / "model")


def token_table(folder: Path) -> None:
    own_format(folder)
    with h5py.File(folder / "table.hdf5", "w") as file:
        file["embedding"] = np.full((4, CONFIG.projection_dim), 0.5, dtype=np.float32)
    (folder / "words.txt").write_text("<S>\n</S>\ncat\nthe\n")


def allennlp_archive(folder: Path, kind: str = "ner") -> None:
    shutil.copy(DATA / "allennlp-tasks" / f"{kind}.tar.gz", folder / "model.tar.gz")


def allennlp_folder(folder: Path, kind: str) -> None:
    with tarfile.open(DATA / "allennlp-tasks" / f"{kind}.tar.gz") as archive:
        archive.extractall(folder / "model", filter="data")


def compressed_text(folder: Path) -> None:
    own_format(folder)
    (folder / "text.txt.gz").write_bytes(gzip.compress((folder / "text.txt").read_bytes()))


def fasta(folder: Path) -> None:
    own_format(folder)
    (folder / "proteins.fasta").write_text(
        "; a comment\n>sp|P1|ONE first\nMKT\naYI\n\n>two/2\n m x\n*\n>three OS=Homo\nGG*\n"
    )


def conllu(folder: Path) -> None:
    own_format(folder)
    rows = [("the", "DET"), ("cat", "NOUN"), ("ran", "VERB")]
    lines = [f"{n}\t{word}\t_\t{tag}\t_" + "\t_" * 5 for n, (word, tag) in enumerate(rows, start=1)]
    (folder / "text.conllu").write_text("\n".join(["# sent_id = 1", *lines, "", *lines, ""]))


def vocabulary(folder: Path) -> None:
    (folder / "words.txt").write_text("<S>\n</S>\n<UNK>\nthe\n.\ncat\ncat\n\nsat\n", encoding="utf-8")


def share_model(folder: Path) -> None:
    """Move the model away and link to it: an index names its model's path, which copies of the directory must share."""
    if (folder / "model").exists():
        model = (folder / "model").rename(folder.with_name(f"{folder.name}-model"))
        (folder / "model").symlink_to(model)


def interrupted(folder: Path, command: str, ratio: float) -> None:
    """Write what a command left that was interrupted after a part of its changes of the disk."""
    inputs = folder.with_name(f"{folder.name}-straight")
    n_changes = len(run_straight(ALL_COMMANDS[command], inputs))
    shutil.rmtree(inputs)
    ALL_COMMANDS[command].prepare(folder)
    share_model(folder)
    before = partial(fail_at, commit_always, int(ratio * n_changes), "kill")
    ended = run_elmokit(*ALL_COMMANDS[command].start, folder=folder, before=before, limits=LIMITS)
    assert ended.code < 0, ended.err


def finished(folder: Path, command: str) -> None:
    """Write what a command makes."""
    COMMANDS[command].prepare(folder)
    share_model(folder)
    ended = run_elmokit(*COMMANDS[command].start, folder=folder, before=commit_always, limits=LIMITS)
    assert ended.code == 0, ended.err


def config_of_training(folder: Path) -> None:
    write_text(folder)
    (folder / "settings.toml").write_text(
        'preset = "tiny"\nbatch_size = 2\nwindow_length = 3\nn_samples = 3\nlearning_rate = 0.1\n'
        "[model]\ndropout = 0.1\n[data]\nmax_words = 9\n"
    )


def config_of_task(folder: Path) -> None:
    write_config(folder=folder, train={"epochs": 1})


def allennlp_config(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(allennlp_configs.published("ner")))


def trained_task(folder: Path, name: str) -> None:
    write_config(name, folder=folder, train={"epochs": 1})
    ended = run_elmokit("task", "train", "config.toml", "--run", "run", folder=folder, limits=LIMITS)
    assert ended.code == 0, ended.err


def stimuli(folder: Path) -> None:
    own_format(folder)
    (folder / "stimuli.csv").write_text('item,sentence\n1,"The cat, he said, ""sat""."\n2,The dog ran. It sat.\n')


def similarity(folder: Path) -> None:
    own_format(folder)
    (folder / "pairs.csv").write_text('the cat sat,the cat ran,4\n"the dog, the cat",a mat .,1\na cat,a dog,2.5\n')
    (folder / "words.txt").write_text("cat dog 4\ncat mat 1\ndog ran 2\n")


def senses(folder: Path) -> None:
    own_format(folder)
    write_set(folder, "train", TRAIN)
    write_set(folder, "test", TEST)
    content = "".join(f"{lemma}\t{pos}\t{' '.join(keys)}\n" for (lemma, pos), keys in INVENTORY.items())
    (folder / "senses.tsv").write_text(content)


def _embed(model: str, *flags: str, source: str = "text.txt") -> Any:
    return partial(Specimen, command=("embed", source, "out.hdf5", "--model", model, *flags))


SHORT = ("--tokens", "20")
_TASK = ("task", "evaluate", "run", "data")
_FIND = ("neighbors", "find", "index", "dog", "the dog ran .", "--json")
SPECIMENS = {
    specimen.name: specimen
    for specimen in (
        _embed("model")("own format", own_format, ("model/*",)),
        Specimen(
            "own format, softmax", own_format, ("model/*",), ("evaluate", "perplexity", "text.txt", "--model", "model")
        ),
        _embed("elmo")("published HDF5", published, ("elmo/*",)),
        Specimen("TF checkpoint", tf_checkpoint, ("model/*",), ("info", "--model", "model")),
        _embed("model")("TF-Hub module", tf_hub, ("model/**/*",)),
        _embed("model.zip")("zip archive", zip_archive, ("*.zip",)),
        _embed("model")("ELMoForManyLangs", many_langs, ("model/*",)),
        _embed("model", "--token-embeddings", "table.hdf5", "--vocabulary", "words.txt")(
            "table of token vectors", token_table, ("table.hdf5", "words.txt")
        ),
        Specimen("AllenNLP archive", allennlp_archive, ("*",), ("task", "open", "model.tar.gz", "--run", "run")),
        *(
            Specimen(
                f"AllenNLP {kind}",
                partial(allennlp_folder, kind=kind),
                ("model/**/*",),
                ("task", "open", "model", "--run", "run"),
            )
            for kind in ("ner", "coref", "qa")
        ),
        _embed("model")("text", own_format, ("text.txt",)),
        _embed("model", source="text.txt.gz")("compressed text", compressed_text, ("text.txt.gz",)),
        _embed("model", "--text-kind", "fasta", source="proteins.fasta")("FASTA", fasta, ("proteins.fasta",)),
        Specimen("CoNLL-U", conllu, ("text.conllu",), ("neighbors", "index", "text.conllu", "i", "--model", "model")),
        Specimen("vocabulary", vocabulary, ("words.txt",), ("vocab", "words.txt", "new.txt", "--repair")),
        Specimen(
            "interrupted training",
            partial(interrupted, command="train", ratio=0.9),
            ("run/**/*",),
            COMMANDS["train"].start,
            share=0.3,
        ),
        Specimen("training run", partial(finished, command="train"), ("run/**/*",), ("info", "--model", "run")),
        Specimen(
            "interrupted task",
            partial(interrupted, command="task train", ratio=0.7),
            ("run/**/*",),
            COMMANDS["task train"].start,
            share=0.5,
        ),
        Specimen("task run", partial(finished, command="task train"), ("run/**/*",), _TASK),
        Specimen("index, vectors", partial(finished, command="neighbors index"), ("index/layer*",), _FIND),
        Specimen(
            "config of a training",
            config_of_training,
            ("settings.toml",),
            # With a length that a mutant cannot change: a sound config of a training without end is not damaged.
            ("train", "text.txt", "--held-out", "text.txt", "--config", "settings.toml", "--run", "run", *SHORT),
        ),
        Specimen(
            "config of a task",
            config_of_task,
            ("config.toml",),
            ("task", "train", "config.toml", "--run", "run", "--set", "train.epochs=1"),
        ),
        Specimen("config of AllenNLP", allennlp_config, ("config.json",), ("task", "import", "config.json")),
        *(Specimen(f"data of {name}", partial(trained_task, name=name), ("data",), _TASK) for name in TEXTS),
        Specimen(
            "minimal pairs",
            write_pairs,
            ("*.jsonl",),
            ("evaluate", "minimal-pairs", "one.jsonl", "two.jsonl", "--model", "model"),
        ),
        Specimen(
            "stimuli",
            stimuli,
            ("stimuli.csv",),
            ("surprisal", "stimuli.csv", "--column", "sentence", "--words", "--model", "model"),
        ),
        Specimen(
            "similarity",
            similarity,
            ("pairs.csv", "words.txt"),
            ("evaluate", "similarity", "pairs.csv", "words.txt", "--model", "model"),
        ),
        Specimen(
            "senses",
            senses,
            ("*.xml", "*.key.txt", "*.tsv"),
            ("evaluate", "wsd", "train.data.xml", "test.data.xml", "--inventory", "senses.tsv", "--model", "model"),
        ),
    )
}
STEPS: dict[str, Step] = {name: specimen.try_mutants for name, specimen in SPECIMENS.items()}
