"""The report about a model: all sections, what is left out, and resuming."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from elmokit.errors import ConfigError, OutputError, TextError
from elmokit.evaluation import report as report_module
from elmokit.evaluation.report import evaluate_all, evaluate_one
from elmokit.evaluation.table import EVALUATIONS
from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.paths import ROOT
from tests.helpers.sense_files import INVENTORY, TEST, TRAIN, write_set
from tests.helpers.shell import Shell

pytestmark = pytest.mark.usefixtures("short_probes")

STORIES = ROOT / "examples" / "evaluation" / "natural-stories"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with a little data for every section."""
    folder = tmp_path / "data"
    for name in ("lm-news", "blimp", "sts-benchmark", "word-similarity", "ud-english-ewt", "wsd/semcor", "wsd/one"):
        (folder / name).mkdir(parents=True)
    (folder / "lm-news" / "test.txt").write_text("the cat sat .\nthe dog ran on the mat .\n")
    (folder / "lm-news" / "train-0.txt").write_text("the cat sat .\nthe dog ran on the mat .\n" * 3)
    pair = {
        "sentence_good": "the cat sat .",
        "sentence_bad": "cat the sat .",
        "UID": "order",
        "linguistics_term": "syntax",
    }
    (folder / "blimp" / "blimp.jsonl").write_text(json.dumps(pair) + "\n")
    (folder / "blimp" / "published.tsv").write_text("UID\tlstm\norder\t0.75\n")
    (folder / "sts-benchmark" / "dev.csv").write_text("the cat sat,the cat ran,4\nthe dog,a mat .,1\n")
    (folder / "word-similarity" / "words.txt").write_text("cat dog 4\ncat mat 1\n")
    lines = [f"{n}\t{word}\t_\t{tag}" + "\t_" * 6 for n, (word, tag) in enumerate([("the", "DET"), ("cat", "NOUN")], 1)]
    for part in ("train", "dev"):
        (folder / "ud-english-ewt" / f"en_ewt-ud-{part}.conllu").write_text("\n".join(lines) + "\n")
    write_set(folder / "wsd" / "semcor", "semcor", TRAIN)
    write_set(folder / "wsd" / "one", "one", TEST)
    content = "".join(f"{lemma}\t{pos}\t{' '.join(keys)}\n" for (lemma, pos), keys in INVENTORY.items())
    (folder / "wsd" / "sense-inventory.tsv").write_text(content)
    shutil.copytree(STORIES, folder / "natural-stories")
    save_model(random_model(), tmp_path / "model", overwrite=True)  # the fixture of the shell has one
    return folder


@pytest.mark.slow
def test_the_report_has_all_sections_and_resumes_with_the_same_result(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, whole, broken = tmp_path / "model", tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    facts = evaluate_all(model, data, whole / "report.md")
    assert facts.keys() == EVALUATIONS.keys()
    assert {path.name for path in whole.iterdir()} == {"report.md", "report"}
    text = (whole / "report.md").read_text()
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(titles) == len(EVALUATIONS) + 2
    for link in [line.partition("](")[2][:-1] for line in text.splitlines() if line.startswith("![")]:
        assert (whole / link).is_file()
    assert json.loads((whole / "report" / "results.json").read_text()) == facts

    for stop_in in ("minimal pairs", "similarity", "embed train"):

        def stop(stage: str, done: int, total: int | None, stop_in: str = stop_in) -> None:
            if stage == stop_in:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            evaluate_all(model, data, broken / "report.md", progress=stop)
        assert {path.name for path in broken.iterdir()} == {"report.md.partial"}
    sections: list[str] = []
    assert evaluate_all(model, data, broken / "report.md", on_section=sections.append) == facts
    assert sections == ["pos", "wsd"]
    assert {path.name for path in broken.iterdir()} == {"report.md", "report"}
    for path in sorted(whole.rglob("*")):
        if path.is_file():
            assert (broken / path.relative_to(whole)).read_bytes() == path.read_bytes(), path


def test_what_is_missing_is_left_out_with_the_reason(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "can_draw", lambda: False)
    for name in ("wsd", "ud-english-ewt", "natural-stories", "blimp"):
        shutil.rmtree(data / name)
    facts = evaluate_all(tmp_path / "model", data, tmp_path / "report.md")
    assert list(facts) == ["perplexity", "similarity"]
    text = (tmp_path / "report.md").read_text()
    assert r"- wsd: the data has no wsd/semcor/\*.data.xml" in text
    assert "![" not in text

    save_model(random_model(), tmp_path / "weights.hdf5")
    shutil.rmtree(data / "sts-benchmark")
    facts = evaluate_all(tmp_path / "weights.hdf5", data, tmp_path / "second.md")
    assert list(facts) == ["similarity"]
    assert "- perplexity: the model has no softmax and vocabulary." in (tmp_path / "second.md").read_text()


def test_names_with_spaces_are_quoted_in_the_report(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, report = (tmp_path / "model").rename(tmp_path / "my model"), tmp_path / "my report.md"
    evaluate_all(model, data, report, only=["similarity"])
    text = report.read_text()
    assert "](my%20report/similarity.svg)" in text
    assert f"--model '{model}' --data DIR --report 'my report.md'" in text


REFUSED: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    (lambda at: evaluate_all(at / "model", at / "data", at / "r.md", only=["blimp"]), ConfigError, "'blimp'"),
    (lambda at: evaluate_all(at / "model", at / "nowhere", at / "r.md"), TextError, "evaluate with .*nowhere"),
    (lambda at: evaluate_all(at / "model", at / "model", at / "r.md"), TextError, "nothing to evaluate"),
    (lambda at: evaluate_all(at / "model", at / "data", at / "r"), OutputError, "needs an extension"),
    (lambda at: evaluate_all(at / "model", at / "data", at / "mine.md"), OutputError, "already exists"),
    (lambda at: evaluate_one("blimp", at / "model", at / "data"), ConfigError, "evaluation is 'blimp'"),
    (lambda at: evaluate_one("minimal-pairs", at / "weights.hdf5", at / "data"), ConfigError, "has no softmax"),
    (lambda at: evaluate_one("minimal-pairs", at / "model", at / "nowhere"), ConfigError, r"nowhere.* no blimp/\*"),
]


@pytest.mark.parametrize(("call", "error", "mentioned"), REFUSED, ids=range(len(REFUSED)))
def test_mistakes_are_refused_before_any_work(
    call: Callable[[Path], object], error: type[Exception], mentioned: str, data: Path, tmp_path: Path
) -> None:
    save_model(random_model(), tmp_path / "weights.hdf5")
    (tmp_path / "mine.md").write_text("mine")
    with pytest.raises(error, match=mentioned):
        call(tmp_path)
    assert (tmp_path / "mine.md").read_text() == "mine"
    assert not list(tmp_path.glob("*.partial"))


def test_a_partial_report_of_other_data_is_refused(data: Path, tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "minimal pairs":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_all(tmp_path / "model", data, tmp_path / "report.md", progress=stop)
    (data / "lm-news" / "test.txt").write_text("the dog .\n")
    with pytest.raises(OutputError, match="was started with another content of the data"):
        evaluate_all(tmp_path / "model", data, tmp_path / "report.md")


def test_a_report_that_was_interrupted_after_its_figures_is_finished(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, report = tmp_path / "model", tmp_path / "report.md"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(report_module, "_markdown", stop)
        with pytest.raises(KeyboardInterrupt):
            evaluate_all(model, data, report, only=["similarity"])
    assert (tmp_path / "report" / "results.json").is_file()
    assert not report.exists()
    assert evaluate_all(model, data, report, only=["similarity"]).keys() == {"similarity"}
    assert report.is_file()
    assert not list(tmp_path.glob("*.partial"))


def test_a_text_that_is_there_compressed_too_is_read_once(data: Path) -> None:
    (data / "lm-news" / "test.txt.gz").write_bytes(gzip.compress(b"the mat .\n"))
    facts = evaluate_one("perplexity", data.parent / "model", data).to_dict()
    assert facts["lm-news"]["n_sentences"] == 2


def test_one_evaluation_resumes_and_gives_what_the_report_has(data: Path, tmp_path: Path) -> None:
    model, kept = tmp_path / "model", tmp_path / "kept"
    done_pairs: list[int] = []

    def stop(stage: str, done: int, total: int | None) -> None:
        if done == 4:
            raise KeyboardInterrupt  # in the second of two files

    with pytest.raises(KeyboardInterrupt):
        evaluate_one("similarity", model, data, keep=kept, progress=stop)
    result = evaluate_one("similarity", model, data, keep=kept, progress=lambda *report: done_pairs.append(report[1]))
    assert done_pairs == [4]
    facts = evaluate_all(model, data, tmp_path / "report.md", only=["similarity"])
    assert facts == {"similarity": result.to_dict()}


def test_the_command_writes_one_section(shell: Shell, data: Path) -> None:
    call = ("evaluate", "all", "--model", "model", "--data", str(data), "--report", "report.md")
    ran = shell(*call, "--only", "minimal-pairs", "--json")
    assert ran.code == 0, ran.err
    assert list(json.loads(ran.out)) == ["minimal-pairs"]
    assert Path("report/minimal-pairs.svg").is_file()
    assert "--only minimal-pairs" in Path("report.md").read_text()
