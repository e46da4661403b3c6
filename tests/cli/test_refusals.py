"""What the command line refuses: one line that names what is wrong, exit code 2, and no file has changed."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path

import pytest

from elmokit.engine.architecture import PRESETS
from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.shell import Shell
from tests.helpers.task_examples import write_config

TEXT = "the cat sat on the mat .\nthe dog ran .\n"
CONLLU = "1\tcat\tcat\tNOUN\tNN" + "\t_" * 5 + "\n"
EMBED = "embed text.txt out.hdf5 --model model"
PERPLEXITY = "evaluate perplexity text.txt --model model"
TRAIN = "train corpus.txt --held-out corpus.txt --out run --preset tiny --batch-size 2 --window-length 5"
FINETUNE = "finetune --held-out text.txt --out run --batch-size 4 --window-length 5"
POS = "evaluate pos tags.conllu tags.conllu --model model"
ALLENNLP = "allennlp-elmo text.txt out.hdf5 --weight-file model"

REFUSED = [  # a command line, and the name that the error must mention
    # Texts
    ("embed nowhere.txt out.hdf5 --model model", "nowhere.txt"),
    ("embed latin.txt out.hdf5 --model model", "latin.txt, line 1: not UTF-8"),
    ("embed table.txt out.hdf5 --model model", "table.txt looks like a table"),
    ("vocab no*.txt out.txt", "'no*.txt'"),
    ("vocab empty.txt out.txt --repair", "empty.txt"),
    ("convert model out --calibrate empty.txt", "empty.txt contains no sentence"),
    ("evaluate similarity model --model model", "model: Is a directory"),
    ("evaluate pos bad.conllu tags.conllu", "bad.conllu, line 1"),
    ("evaluate pos raw.txt raw.txt", "raw.txt looks like raw text: 'home.' ends a line"),
    ("evaluate pos tags.conllu nowhere.conllu", "nowhere.conllu"),
    ("evaluate wsd text.txt one.data.xml", "text.txt"),
    ("neighbors index nowhere out", "'nowhere'"),
    ("allennlp-elmo gaps.txt out.hdf5 --all --weight-file model", "gaps.txt, line 2 is blank"),
    # Standard input where a text is read twice
    *(
        (call, "Standard input")
        for call in (
            "train - --held-out text.txt --out run",
            "finetune - --held-out text.txt --out run --model model",
            "distill model - --held-out text.txt --out run",
            "neighbors index - index --model model",
            "evaluate minimal-pairs - --model model",
            "evaluate similarity - --model model",
            "evaluate similarity pairs.tsv --whiten - --model model",
        )
    ),
    # Outputs
    ("embed text.txt text.txt --model model", "text.txt already exists"),
    ("embed text.txt text.txt/out.hdf5 --model model", "text.txt is not a directory"),
    ("embed text.txt - --model model", "standard output (-)"),
    *((f"embed text.txt {name} --model nowhere", "has no name") for name in ("''", ".", "./", "/")),
    ("neighbors index text.txt '' --model nowhere", "has no name"),
    *((f"embed text.txt x.{end} --model model", f".{end.split('.')[-1]}") for end in ("npy", "txt", "HDF5", "hdf5.gz")),
    ("vocab . text.txt --overwrite", "text.txt is both the input"),
    ("vocab words.counts.tsv words.txt --overwrite", "words.counts.tsv is both the input"),
    ("surprisal pairs.tsv --column sentence", "--column needs --words"),
    ("surprisal stimuli.csv --words", "stimuli.csv is a table; --column must name one of item, text, word"),
    ("surprisal stimuli.csv --words --column texts", "no column 'texts'; its columns are item, text, word"),
    ("surprisal stimuli.csv --words --column text", "a column of the result has the name 'word', too"),
    ("surprisal bits.csv --words --bits --column text", "a column of the result has the name 'forward_bits', too"),
    ("surprisal files.csv stimuli.csv --words --column text", "a column of the result has the name 'file', too"),
    ("surprisal stimuli.csv other.csv --words --column word", "other.csv has the columns item, word, and stimuli.csv"),
    ("surprisal other.csv --words --column word --model model", "No word to score"),
    ("surprisal stimuli.csv --words --region word", "--region needs --column"),
    ("surprisal stimuli.csv --words --column text --region words", "no column 'words'; its columns are item, text"),
    ("evaluate minimal-pairs judged.tsv --per-pair out.tsv --model model", "has the name 'good_unknown', too"),
    ("surprisal text.txt --model model --out text.txt --overwrite", "text.txt is both the input"),
    (f"{PERPLEXITY} --per-token text.txt --overwrite", "text.txt is both the input"),
    ("surprisal text.txt --model model --out words.xlsx", "words.xlsx has the name of a spreadsheet"),
    ("surprisal text.txt --model model --out pipe", "pipe is a device, a pipe"),
    ("embed text.txt pipe --model model --overwrite", "pipe is a device, a pipe"),
    ("convert model out.safetensors", "out.safetensors ends in .safetensors"),
    ("convert model out.hdf5 --storage float16", "--storage float16"),
    ("convert model words --overwrite", "words contains notes.md"),
    ("convert model . --overwrite", "has no name"),
    ("neighbors index text.txt model --model model", "model already exists"),
    ("embed text.txt nowhere/out.hdf5 --model model", "nowhere does not exist"),
    # Models
    ("embed text.txt out.hdf5 --model ''", "The name of the model is empty"),
    ("embed text.txt out.hdf5 --model nowhere", "nowhere"),
    ("info --model text.txt", "text.txt"),
    ("info --model orignal", "Did you mean 'original'? `elmokit models` lists the names."),
    ("info --model broken/weights.hdf5", "weights.hdf5"),
    ("info --model lonely.hdf5", "options file"),
    ("neighbors find model dog 'a dog'", "in model"),
    ("neighbors find nowhere dgo 'a dog'", "in nowhere"),
    ("neighbors find text.txt dog 'a dog'", "no index of this version in text.txt"),
    # Options
    (EMBED.replace("--model", "--modle"), "No such option '--modle'"),
    (f"{EMBED} --layer 0", "Did you mean '--layers'?"),
    ("embed", "Missing argument 'TEXT'"),
    ("evaluate wsd train.data.xml", "Missing argument 'TESTS...'"),
    ("finetune text.txt --held-out text.txt", "Missing option '--out'"),
    ("distill model text.txt --held-out text.txt", "Missing option '--out'"),
    ("emb", "Did you mean 'embed'?"),
    ("evaluate wsdd", "No such command 'wsdd'"),
    ("--max-line-bytes 99999999999999999999 vocab text.txt out.txt", "--max-line-bytes"),
    (f"{EMBED} --layers x", "--layers"),
    (f"{EMBED} --top --all", "--all cannot be combined with --top"),
    (f"{EMBED} --average --layers 1", "--layers cannot be combined with --average"),
    (f"{EMBED} --forget-sentences --use-sentence-keys", "--use-sentence-keys"),
    (f"{EMBED} --forget-sentences --include-sentence-indices", "--include-sentence-indices"),
    (f"{EMBED} --raw --text-kind fasta", "--raw cannot be combined with --text-kind"),
    (f"{EMBED} --text-kind fasta --use-sentence-keys", "--text-kind fasta cannot be combined with --use-sentence-keys"),
    (f"{EMBED} --text-kind raw", "'allennlp'. Raw text is read with --raw."),
    (f"{EMBED} --fasta", "No such option '--fasta'. It is '--text-kind fasta' now."),
    (f"{EMBED} --strict", "No such option '--strict'. It is '--text-kind allennlp' now."),
    ("task predict run text.txt --tokenize", "No such option '--tokenize'. It is '--text-kind lines' now."),
    ("task predict run text.txt --tokenized", "No such option '--tokenized'. It is '--text-kind tokens' now."),
    (f"{EMBED} --language de", "--language needs --raw"),
    (f"{EMBED} --batch-size 64", "--batch-size has no effect with --start warm"),
    (f"{EMBED} --start stateful --batch-tokens 9", "--batch-tokens has no effect with --start stateful"),
    (f"{EMBED} --documents --start stateful", "start is 'stateful'"),
    ("embed tags.conllu out.hdf5 --model model --documents", "tags.conllu is CoNLL-U"),
    ("surprisal tags.conllu --model model --documents", "tags.conllu is CoNLL-U"),
    ("surprisal tags.conllu --model model --words", "tags.conllu is CoNLL-U and has words already"),
    (f"{EMBED} --batch-tokens 0", "--batch-tokens is 0"),
    (f"{EMBED} --threads two", "--threads"),
    *((f"{EMBED} --threads {number}", "--threads") for number in (0, 20000, 10**20)),
    (f"{PERPLEXITY} --batch-tokens 0", "--batch-tokens is 0"),
    (f"{PERPLEXITY} --as-bilm-tf 2 --per-token table.tsv", "--per-token"),
    (f"{PERPLEXITY} --as-bilm-tf 2 --raw", "--raw"),
    (f"{PERPLEXITY} --as-bilm-tf 2 --documents", "--documents"),
    (f"{PERPLEXITY} --per-token - --json", "--per-token - cannot be combined with --json"),
    ("vocab text.txt out.txt --text text.txt", "--text needs --repair"),
    ("vocab text.txt out.txt --repair --max-words 10", "--repair"),
    ("convert model out --start zero --calibrate text.txt", "--start cannot be combined with --calibrate"),
    ("convert model out.onnx --storage float16", "--storage"),
    ("evaluate similarity pairs.tsv --sentences 5 --model model", "--sentences needs --whiten"),
    ("evaluate similarity pairs.tsv --columns 0,1,2 --model model", "--columns is 0,1,2"),
    (f"{POS} --tags xpso", "'xpso'"),
    (f"{POS} --seeds 0", "--seeds is 0"),
    (f"{POS} --sentences 0", "--sentences is 0"),
    # Tasks
    ("task train none.toml --run run", "none.toml"),
    ("task train config.toml --run run --seeds 1,x", "'1,x'"),
    (f"task train config.toml --run run --seeds {2**64}", "seeds is 18,446,744,073"),
    ("task train config.toml --run run --set train.epoch=1", "Did you mean 'train.epochs'"),
    ("task train config.toml --run data", "data already exists"),
    ("task evaluate none data", "none/config.toml"),
    ("task predict none data", "none/config.toml"),
    ("task import config.toml --var x", "--var is 'x'"),
    # AllenNLP
    (f"{ALLENNLP}", "--all, --top and --average"),
    (f"{ALLENNLP} --all --top", "--all, --top and --average"),
    (f"{ALLENNLP} --all --batch-size 0", "--batch-size is 0"),
    (f"{ALLENNLP} --all --cuda-device 99", "cuda:99"),
    # Training
    ("train corpus.txt --held-out corpus.txt", "--out"),
    ("train text.txt --held-out held.txt --out run", "'held.txt'"),
    ("train text.txt --held-out text.txt --out model", "model already exists"),
    ("train one.txt --held-out text.txt --out run", "1 sentence"),
    ("train one.txt --held-out text.txt --out run --preset tiny --batch-size 1", "--window-length"),
    (f"{TRAIN} --max-words 0", "--max-words is 0"),
    (f"{TRAIN} --vocabulary counts.tsv", "counts.tsv: the lines have several columns"),
    (f"{FINETUNE} text.txt --model model --vocabulary counts.tsv", "elmokit vocab --repair counts.tsv"),
    ("bilm-tf train_elmo --save_dir run --vocab_file counts.tsv --train_prefix corpus.txt", "line 4 is 'the\\t9'"),
    (f"{TRAIN} --seed 99999999999", "seed is 99,999,999,999"),
    (f"{TRAIN} --held-out-sentences -1", "--held-out-sentences is -1"),
    (f"{TRAIN} --learning-rate -1 --config negative.toml", "--learning-rate is -1.0"),
    (f"{TRAIN} --config none.toml", "none.toml"),
    (f"{TRAIN} --config broken.toml", "broken.toml"),
    (f"{TRAIN} --config typo.toml", "Did you mean 'batch_size'?"),
    (f"{TRAIN} --config data.toml", "Did you mean 'texts'?"),
    (f"{TRAIN} --config one-text.toml", "texts is 'corpus.txt'"),
    (f"{TRAIN} --config negative.toml", "negative.toml: learning_rate is -2.0"),
    (f"{TRAIN} --config no-data.toml", "data"),
    ("train corpus.txt --held-out corpus.txt --out run --config no-model.toml", "no-model.toml"),
    ("train corpus.txt --held-out corpus.txt --out run --config no-preset.toml", "preset is ['tiny']"),
    (f"{FINETUNE} model --model model", "model is a model"),
    (f"{FINETUNE} en-mini --model model", "en-mini is a model"),
    (f"{FINETUNE} text.txt --model words.hdf5", "words.hdf5"),
    (f"{FINETUNE} text.txt --model corpus.txt", "corpus.txt"),
    (f"{FINETUNE} text.txt --model model --old-text empty.txt", "empty.txt"),
    (f"{FINETUNE} text.txt --model model --frozen-layers top", "'top'"),
    (f"{FINETUNE} text.txt --model model --dropout 1.5", "dropout is 1.5"),
    (f"{FINETUNE} text.txt --model model --out text.txt", "text.txt already exists"),
]


FILES = {
    "latin.txt": b"caf\xe9\n",
    "empty.txt": b"\n",
    "gaps.txt": b"a\n\nb\n",
    "one.txt": b"word\n",
    "table.txt": b"1\tThe\tDT\n2\tcat\tNN\n",
    "corpus.txt": TEXT.encode() * 20,
    "words.counts.tsv": b"cat sat\n",
    "counts.tsv": b"<S>\n</S>\n<UNK>\nthe\t9\ncat\t5\n",
    "words/notes.md": b"mine",
    "tags.conllu": CONLLU.encode(),
    "tags.txt": b"the DET\n",
    "raw.txt": b"Anna stayed at home.\nJohn left her home.\n",
    "bad.conllu": b"1\tthe\n",
    "pairs.tsv": b"the\tcat\t1\n",
    "stimuli.csv": b"item,text,word\n1,The cat sat.,cat\n",
    "judged.tsv": b"good\tbad\tgood_unknown\nThe cat sat.\tThe cat sit.\t0\n",
    "bits.csv": b"text,forward_bits\nThe cat sat.,7\n",
    "files.csv": b"text,file\nThe cat sat.,7\n",
    "other.csv": b"item,word\n1,\n",
    "broken.toml": b"a = \n",
    "typo.toml": b"batchsize = 3\n",
    "data.toml": b"[data]\ntext = ['a']\n",
    "one-text.toml": b"[data]\ntexts = 'corpus.txt'\n",
    "no-data.toml": b"data = 3\n",
    "no-model.toml": b"model = 3\n",
    "no-preset.toml": b"preset = ['tiny']\n",
    "negative.toml": b"learning_rate = -2.0\n",
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything that a command can be called with."""
    folder = tmp_path_factory.mktemp("prepared")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for name in ("model", "lone/weights.hdf5", "lonely.hdf5", "broken/weights.hdf5"):
        save_model(random_model(), folder / name)
    (folder / "broken/weights.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(20))
    save_model(random_model(dataclasses.replace(PRESETS["tiny"], char_cnn=None, n_words=11)), folder / "words.hdf5")
    for name in ("lonely_options.json", "words_vocab.txt"):
        (folder / name).unlink()
    (folder / "text.txt").write_text("the cat sat .\n\nthe dog 's mat\n", encoding="utf-8")
    os.mkfifo(folder / "pipe")
    write_config(folder=folder)
    return folder


@pytest.fixture
def folder(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same working directory for all commands, as none of them may change a file."""
    monkeypatch.chdir(prepared)
    return prepared


def _contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(("command", "mentions"), REFUSED, ids=[command for command, _ in REFUSED])
def test_it_is_refused_in_one_line_and_no_file_changes(shell: Shell, folder: Path, command: str, mentions: str) -> None:
    before = _contents(folder)
    ran = shell(*shlex.split(command))
    assert ran.code == 2
    *others, last = ran.err.splitlines()
    assert last.startswith("elmokit: ")
    assert mentions in last
    assert not [line for line in others if line.startswith(("elmokit: ", "Traceback"))]
    assert _contents(folder) == before
