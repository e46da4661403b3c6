"""The shell: each command does its work; bad input is one line and exit code 2."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit import Elmo, LanguageModel, SentenceEmbedder
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.lm.spelling import spelling_of
from elmokit.lm.surprisal import RegionSurprisal, WordSurprisal
from tests.conftest import random_model
from tests.helpers.shell import Shell


def test_embed_writes_all_layers_of_each_line(shell: Shell) -> None:
    ran = shell("embed", "text.txt", "out.hdf5", "--model", "model")
    assert ran.code == 0
    assert "3 sentences (1 blank), 8 tokens" in ran.err
    assert ran.out == ""
    with h5py.File("out.hdf5") as file:
        assert set(file) == {"0", "1", "2", "sentence_to_index"}
        (expected,) = Elmo.from_pretrained("model").embed([["the", "cat", "sat", "."]])
        np.testing.assert_allclose(file["0"][...], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "shape"),
    [(["--top"], (4, 64)), (["--average"], (4, 64)), (["--all"], (3, 4, 64)), (["--layers", "0,2"], (2, 4, 64))],
)
def test_embed_writes_the_layers_asked_for(shell: Shell, flags: list[str], shape: tuple[int, ...]) -> None:
    assert shell("embed", "text.txt", "out.hdf5", "--model", "model", "--dtype", "float16", *flags).code == 0
    with h5py.File("out.hdf5") as file:
        assert (file["0"].shape, file["0"].dtype) == (shape, np.float16)


def test_embed_pools_by_default_as_the_sentence_embedder(shell: Shell) -> None:
    call = ("embed", "text.txt", "--pool", "auto")
    assert shell(*call, "sif.npz", "--model", "model").code == 0
    Path("alone").mkdir()
    shell("convert", "model", "alone/weights.hdf5")
    with pytest.warns(UserWarning, match=r"weights.hdf5 has no vocabulary .* plain means"):
        assert shell(*call, "mean.npz", "--model", "alone/weights.hdf5").code == 0
    for name in ("sif", "mean"):
        embedder = SentenceEmbedder.by_name(Elmo.from_pretrained("model"), name)  # type: ignore[arg-type]
        expected = embedder.embed([["the", "cat", "sat", "."]])[0]
        np.testing.assert_allclose(np.load(f"{name}.npz")["vectors"][0], expected, atol=1e-5)


def test_embed_reads_standard_input_and_raw_text(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The dog's mat (isn't \"red\").\n")))
    assert shell("embed", "-", "out.hdf5", "--model", "model", "--text-kind", "lines", "--use-sentence-keys").code == 0
    with h5py.File("out.hdf5") as file:
        (vectors,) = file.values()
        tokens = ["The", "dog", "'s", "mat", "(", "is", "n't", '"', "red", '"', ")", "."]
        (expected,) = Elmo.from_pretrained("model").embed([tokens])
        np.testing.assert_allclose(vectors[...], expected, atol=1e-5)


def test_info_counts_the_values_of_a_long_list(shell: Shell) -> None:
    model = random_model().replace(card={"few": [1.5, 2], "many": list(range(9))})
    save_model(model, "listed")
    lines = shell("info", "--model", "listed", "--all").out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith(("few ", "many "))] == [
        "1.5 / 2",
        "9 values (see --json)",
    ]


def test_info_says_what_a_model_is(shell: Shell) -> None:
    shell("convert", "model", "weights.hdf5")
    ours, theirs = shell("info", "--model", "model").out, shell("info", "--model", "weights.hdf5").out
    assert "format      elmokit" in ours
    assert "format      bilm-tf" in theirs
    assert len(ours.splitlines()) <= 8
    for line in ("hidden 64, projection 32, vectors 64", "filters 8x1 16x2 32x3, relu, 1 highway"):
        assert line in ours
        assert line in theirs
    assert "start state" in shell("info", "--model", "model", "--all").out
    facts = json.loads(shell("info", "--model", "model", "--json").out)
    assert facts["parameters"] == f"{random_model().n_parameters:,}"
    assert facts["card"] == {"note": "random"}


def test_quiet_leaves_results_warnings_and_errors(shell: Shell) -> None:
    assert "3 sentences" in shell("embed", "text.txt", "a.hdf5", "--model", "model").err
    assert shell("embed", "text.txt", "b.hdf5", "--model", "model", "--quiet") == (0, "", "")
    assert shell("-q", "embed", "text.txt", "c.hdf5", "--model", "model") == (0, "", "")
    assert "already exists" in shell("embed", "text.txt", "c.hdf5", "--model", "model", "-q").err
    assert shell("vocab", "text.txt", "vocab.txt", "-q").out.startswith("2 sentences")


def test_vocab_counts_and_reports(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("texts").mkdir()
    Path("new").mkdir()
    Path("texts/a.txt").write_text("the cat sat .\nthe dog </S>\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat ran .\n")))
    ran = shell("vocab", "texts", "-", "new/vocab.txt", "--max-words", "5")
    expected = (
        "3 sentences, 11 tokens, 7 types; 45.45% of the tokens ('cat', 'dog', 'ran', 'sat') are outside the "
        "vocabulary of 5\n"
    )
    assert (ran.code, ran.out) == (0, expected)
    assert "The text contains <S> or </S> 1 time." in ran.err
    assert Path("new/vocab.txt").read_text() == "<S>\n</S>\n<UNK>\nthe\n.\n"
    assert Path("new/vocab.counts.tsv").read_text().splitlines()[2:] == ["<UNK>\t5", "the\t3", ".\t2"]


def test_an_output_in_the_home_directory_is_written_there(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("home").mkdir()
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    monkeypatch.setenv("USERPROFILE", str(Path("home").absolute()))
    assert shell("surprisal", "text.txt", "--model", "model", "--out=~/table.tsv").code == 0
    assert Path("home/table.tsv").is_file()
    assert not Path("~").exists()


def test_vocab_sorts_a_list_by_a_text(shell: Shell) -> None:
    Path("text.txt").write_text("the cat saw the dog\nthe dog\n")
    Path("old.txt").write_text("<S>\n</S>\n<UNK>\ncat\ndog\nmat\nthe\n")
    ran = shell("vocab", "old.txt", "new.txt", "--repair", "--text", "text.txt")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0] == "sorted by frequency: from line 4, which has the instead of cat"
    assert "not checked" not in ran.err
    assert Path("new.txt").read_text() == "<S>\n</S>\n<UNK>\nthe\ndog\ncat\nmat\n"
    ran = shell("vocab", "new.txt", "again.txt", "--repair", "--text", "text.txt")
    assert (ran.code, ran.out) == (0, "nothing to repair\n")
    assert "not checked" not in ran.err


def test_perplexity_says_every_mean_and_the_unknown(shell: Shell) -> None:
    ran = shell("evaluate", "perplexity", "text.txt", "--model", "model")
    assert ran.code == 0
    assert "tokens              8, 12.50% unknown" in ran.out
    facts = json.loads(
        shell("evaluate", "perplexity", "text.txt", "--model", "model", "--json", "--batch-tokens", "1").out
    )
    assert (facts["n_sentences"], facts["n_tokens"], facts["n_predictions"], facts["state"]) == (2, 8, 10, "warm")
    values = facts["perplexity"]
    for name in ("forward", "backward"):
        assert f"{name:<19} {values[name]:.4f}\n" in ran.out
        assert facts["bits_per_character"][name] > facts["bits_per_character_unspelled"][name] > 0
    assert f"geometric mean      {values['geometric_mean']:.4f}\n" in ran.out
    assert values["arithmetic_mean"] == pytest.approx((values["forward"] + values["backward"]) / 2)


def test_perplexity_warns_of_a_text_with_many_unknown_words(shell: Shell) -> None:
    warning = "are not in the model's vocabulary and count as <UNK>"
    assert warning not in shell("evaluate", "perplexity", "text.txt", "--model", "model").err
    Path("other.txt").write_text("le chat dort .\n")
    for options in ((), ("--json",), ("--as-bilm-tf", "1")):
        ran = shell("evaluate", "perplexity", "other.txt", "--model", "model", *options)
        assert f"75.0% of the words ('le', 'chat', 'dort') {warning}" in ran.err
    assert "unknown words       75.00% of the tokens ('le', 'chat', 'dort')\n" in ran.out


def test_perplexity_writes_a_table_of_tokens(shell: Shell) -> None:
    ran = shell("evaluate", "perplexity", "text.txt", "--model", "model", "--per-token", "table.tsv", "--json")
    rows = [line.split("\t") for line in Path("table.tsv").read_text().splitlines()]
    names = ["sentence_index", "token", "forward_nats", "backward_nats", "unknown", "spelling_nats", "line"]
    assert rows[0] == names
    assert [row[:2] for row in rows[1:7]] == [["0", word] for word in ("<S>", "the", "cat", "sat", ".", "</S>")]
    facts = json.loads(ran.out)
    for column, name in ((2, "forward"), (3, "backward")):
        nats = [float(row[column]) for row in rows[1:] if row[column]]
        assert len(nats) == facts["n_predictions"]
        assert sum(nats) / len(nats) == pytest.approx(facts["mean_nats"][name], abs=1e-5)
    ran = shell("evaluate", "perplexity", "text.txt", "--model", "model", "--per-token", "-")
    assert [line.split("\t") for line in ran.out.splitlines()] == rows
    assert "geometric mean" in ran.err
    assert (
        "table.tsv already exists"
        in shell("evaluate", "perplexity", "text.txt", "--model", "model", "--per-token", "table.tsv").err
    )


def test_surprisal_is_the_table_of_perplexity(shell: Shell) -> None:
    table = shell("evaluate", "perplexity", "text.txt", "--model", "model", "--per-token", "-").out
    ran = shell("surprisal", "text.txt", "--model", "model")
    assert (ran.code, ran.out) == (0, table)
    assert table.splitlines()[1].startswith("0\t<S>\t\t")
    assert shell("surprisal", "text.txt", "--model", "model", "--out", "table.tsv").out == ""
    assert Path("table.tsv").read_text() == table
    assert "table.tsv already exists" in shell("surprisal", "text.txt", "--model", "model", "--out", "table.tsv").err
    assert shell("surprisal", "text.txt", "--model", "model", "--start", "zero").out != table


def test_surprisal_marks_unknown_words_with_the_price_of_their_letters(shell: Shell) -> None:
    Path("text.txt").write_text("the cat sat .\n\nthe zzyzx sat .\n")
    ran = shell("surprisal", "text.txt", "--model", "model")
    head, *rows = [line.split("\t") for line in ran.out.splitlines()]
    table = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["token"] for row in table if row["unknown"] == "1"] == ["zzyzx"]
    assert {row["spelling_nats"] for row in table if row["unknown"] == "0"} == {"0.000000"}
    (unknown,) = (row for row in table if row["unknown"] == "1")
    bits = spelling_of(open_model("model")).bits("zzyzx")
    assert float(unknown["spelling_nats"]) == pytest.approx(bits * math.log(2), abs=1e-6)
    facts = json.loads(shell("evaluate", "perplexity", "text.txt", "--model", "model", "--json").out)
    # As in perplexity: together they are the length of the whole text's code.
    nats = sum(float(row["forward_nats"] or 0) + float(row["spelling_nats"]) for row in table)
    assert nats / math.log(2) / facts["n_characters"] == pytest.approx(facts["bits_per_character"]["forward"], abs=1e-5)
    assert ran.err.count("\n") == 1
    assert "Unknown words, which are not in the model's vocabulary: 1 of 8 ('zzyzx')." in ran.err
    Path("text.txt").write_text("the cat sat .\n")
    assert shell("surprisal", "text.txt", "--model", "model").err == ""


def test_surprisal_names_the_line_of_each_sentence(shell: Shell) -> None:
    Path("text.txt").write_text("The cat sat. The dog sat.\n\nThe cat sat.\n")
    for flags in (("surprisal", "text.txt"), ("evaluate", "perplexity", "text.txt", "--per-token", "-")):
        ran = shell(*flags, "--raw", "--model", "model")
        rows = [line.split("\t") for line in ran.out.splitlines()[1:]]
        assert dict.fromkeys((row[0], row[6]) for row in rows) == dict.fromkeys([("0", "1"), ("1", "1"), ("2", "3")])


def test_surprisal_names_the_file_if_there_are_several(shell: Shell) -> None:
    Path("text.txt").write_text("the cat sat .\n\nthe dog sat .\n")
    Path("other.txt").write_text("\nthe cat\n")
    Path("a.tsv").write_text("text\titem\nthe cat\t1\n")
    Path("b.tsv").write_text("text\titem\nthe dog\t1\n")
    lines = [("text.txt", "1"), ("text.txt", "3"), ("other.txt", "2")]
    for files, flags, expected in (
        (("text.txt", "other.txt"), (), lines),
        (("text.txt", "other.txt"), ("--documents",), lines),
        (("text.txt", "other.txt"), ("--words",), lines),
        (("a.tsv", "b.tsv"), ("--words", "--column", "text"), [("a.tsv", None), ("b.tsv", None)]),
    ):
        table = list(
            csv.DictReader(shell("surprisal", *files, *flags, "--model", "model").out.splitlines(), delimiter="\t")
        )
        assert list(dict.fromkeys((row["file"], row.get("line")) for row in table)) == expected


def test_a_region_of_each_text_is_summed_and_one_that_cuts_a_word_is_named(shell: Shell) -> None:
    rows = ["the cat sat.\tcat sat\t1", "the dog ran .\tdog ran\t2", "the cat\t\t3", "the zyx sat\tzyx\t4"]
    Path("stimuli.tsv").write_text("".join(f"{row}\n" for row in ["text\tcritical\titem", *rows]))
    flags = ("--column", "text", "--words", "--region", "critical", "--model", "model")
    ran = shell("surprisal", "stimuli.tsv", *flags)
    table = list(csv.DictReader(ran.out.splitlines(), delimiter="\t"))
    assert list(table[0]) == ["item", *RegionSurprisal._fields]
    assert [(row["item"], row["text_index"], row["region"], row["words"]) for row in table] == [
        ("1", "0", "cat sat", "cat sat."),
        ("2", "1", "dog ran", "dog ran"),
        ("4", "3", "zyx", "zyx"),
    ]
    expected = LanguageModel.from_pretrained("model", precision="float32").region_surprisal(
        ["the cat sat.", "the dog ran .", "the zyx sat"], [(4, 11), "dog ran", "zyx"]
    )
    assert [row["forward_nats"] for row in table] == [f"{row.forward_nats:.6f}" for row in expected]
    cut, without, unknown = ran.err.splitlines()
    assert cut.startswith("Regions that cut a word (only the tokens that they touch are summed): 1 of 3 (")
    assert cut.endswith("stimuli.tsv, line 2, 'cat sat' in 'cat sat.').")
    assert without == "Rows without a region: 1 of 4."
    assert unknown.startswith("Regions with unknown words, which are not in the model's vocabulary: 1 of 3 ('zyx')")
    Path("stimuli.tsv").write_text("text\tcritical\nat 10:15 the cat\t9 : 16\nthe dog\t4 7\n")
    table = list(csv.DictReader(shell("surprisal", "stimuli.tsv", *flags).out.splitlines(), delimiter="\t"))
    assert [row["region"] for row in table] == ["the cat", "dog"]
    Path("stimuli.tsv").write_text("text\tcritical\nat 10:15 the cat\t10:15\n")
    table = list(csv.DictReader(shell("surprisal", "stimuli.tsv", *flags).out.splitlines(), delimiter="\t"))
    assert [row["region"] for row in table] == ["10:15"]


def test_words_of_a_table_keep_its_other_columns(shell: Shell) -> None:
    text = 'The cat, he said, "sat". It ran.'
    rows = ["item,sentence,condition", '7,"the, zyx","a, b"', f'8,"{text.replace(chr(34), 2 * chr(34))}",c', "9,,d"]
    Path("stimuli.csv").write_text("".join(f"{row}\n" for row in rows))
    ran = shell("surprisal", "stimuli.csv", "--column", "sentence", "--words", "--model", "model", "--out", "words.csv")
    assert (ran.code, ran.out) == (0, ""), ran.err
    assert "vocabulary: 8 of 9 ('the,', 'zyx', 'The', 'cat,', 'he', 'said,', '\"sat\".', 'It')." in ran.err
    with Path("words.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["item", "condition", *WordSurprisal._fields]
    assert [row["word"] for row in table] == ["the,", "zyx", *text.split()]
    assert [(row["item"], row["condition"]) for row in table] == [("7", "a, b")] * 2 + [("8", "c")] * 7
    expected = LanguageModel.from_pretrained("model", precision="float32").word_surprisal(["the, zyx", text])
    for row, word in zip(table, expected, strict=True):
        assert float(row["forward_nats"]) == pytest.approx(word.forward_nats, abs=1e-6)
        assert [row[name] for name in ("start", "stop", "unknown", "n_tokens")] == [
            str(int(value)) for value in (word.start, word.stop, word.unknown, word.n_tokens)
        ]


def test_words_of_lines_have_their_line_and_can_be_in_bits(shell: Shell) -> None:
    Path("text.txt").write_text("The cat sat. It ran.\n\nthe cat\n")
    tables = []
    for flags in ((), ("--bits",)):
        out = shell("surprisal", "text.txt", "--words", "--model", "model", *flags).out
        head, *rows = [line.split("\t") for line in out.splitlines()]
        tables.append([dict(zip(head, row, strict=True)) for row in rows])
    assert [(row["line"], row["text_index"], row["sentence_index"]) for row in tables[0]] == (
        [("1", "0", "0")] * 3 + [("1", "0", "1")] * 2 + [("3", "1", "0")] * 2
    )
    for nats, bits in zip(*tables, strict=True):
        for name in ("forward", "backward", "spelling"):
            assert float(bits[f"{name}_bits"]) * math.log(2) == pytest.approx(float(nats[f"{name}_nats"]), abs=1e-5)
    Path("text.txt").write_text("The cat sat.\nIt ran.\n\n\nthe cat\n")
    out = shell("surprisal", "text.txt", "--words", "--documents", "--model", "model").out
    assert [line.split("\t")[:3] for line in out.splitlines()[1:]] == (
        [["1", "0", "0"]] * 3 + [["1", "0", "1"]] * 2 + [["5", "1", "0"]] * 2
    )
    head = shell("surprisal", "text.txt", "--raw", "--bits", "--model", "model").out.splitlines()[0]
    assert head == "sentence_index\ttoken\tforward_bits\tbackward_bits\tunknown\tspelling_bits\tline"


def test_surprisal_is_computed_in_float32(shell: Shell) -> None:
    assert shell("convert", "model", "quick", "--precision", "int8").code == 0
    table = shell("surprisal", "text.txt", "--model", "quick").out
    assert table == shell("surprisal", "text.txt", "--model", "model").out  # whose own precision is float32
    assert shell("surprisal", "text.txt", "--model", "quick", "--precision", "int8").code == 0


def test_perplexity_as_bilm_tf_says_what_is_lost(shell: Shell) -> None:
    Path("text.txt").write_text("the cat sat .\n\nthe dog\n")
    ran = shell("evaluate", "perplexity", "text.txt", "--model", "model", "--as-bilm-tf", "2")
    assert "predictions         8 of 9 per direction; bilm-tf does not count the other 1\n" in ran.out
    facts = json.loads(
        shell("evaluate", "perplexity", "text.txt", "--model", "model", "--as-bilm-tf", "1", "--json").out
    )
    assert (facts["as_bilm_tf"], facts["n_predictions"], facts["n_lost"]) == (1, 9, 0)
    assert facts["perplexity"]["as_bilm_tf"] > 1
    assert (
        "do not fill a batch of 4, for which bilm-tf prints nan"
        in shell("evaluate", "perplexity", "text.txt", "--model", "model", "--as-bilm-tf", "4").err
    )


@pytest.mark.parametrize(
    "call",
    [
        ("embed", "a b " * 100_000, "out.hdf5", "--model", "model"),
        ("embed", "text.txt", "out.hdf5", "--model", "m" * 1_000_000),
        ("embed", "text.txt", "out.hdf5", "--start", "{" * 100_000),
        ("vocab", "text.txt", "[" * 100_000, "out", "more"),
    ],
    ids=["input", "model", "option", "surplus"],
)
def test_an_error_about_a_long_argument_shows_its_ends(shell: Shell, call: tuple[str, ...]) -> None:
    ran = shell(*call)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert " ... " in ran.err
    assert len(ran.err) < 5000


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you ...")])
def test_too_little_memory_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("elmokit.storage.text_files.bounded_lines", fail)
    ran = shell("vocab", "text.txt", "vocab.txt")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "Out of memory." in ran.err


def test_the_longest_line_of_a_text_can_be_set(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMOKIT_MAX_LINE_BYTES", "100")  # restored after the test
    Path("wide.txt").write_text("word " * 30)
    assert "line 1 is longer than 100 bytes" in shell("vocab", "wide.txt", "vocab.txt").err
    assert shell("--max-line-bytes", "150", "vocab", "wide.txt", "vocab.txt").code == 0


def test_help_and_import_do_not_wait_for_torch(folder: Path) -> None:
    code = "import sys; sys.argv = ['elmokit', '--help']\ntry:\n    from elmokit.cli.main import main; main()\n"
    code += "finally:\n    print(sorted({'torch', 'numpy', 'h5py'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Training:" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_pipe_is_read_once_and_whole(shell: Shell) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"the cat\nthe dog sat\n")
    os.close(write_end)
    ran = shell("embed", f"/dev/fd/{read_end}", "out.hdf5", "--model", "model")
    os.close(read_end)
    assert (ran.code, "2 sentences, 5 tokens" in ran.err) == (0, True)
