"""The documents say what is: their code runs, their names and files exist."""

from __future__ import annotations

import importlib.util
import json
import pydoc_data.topics
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import elmokit
from elmokit.cli.main import main
from elmokit.formats.save import save_model
from elmokit.pretrained.pooling_names import POOLING_NAMES
from tests.conftest import random_model
from tests.helpers import allennlp_configs
from tests.helpers.hosts import need_host
from tests.helpers.paths import ROOT
from tests.helpers.task_examples import QA_PASSAGE, TEXTS

DOCS = ROOT / "docs"
PAGES_WITH_OUTPUT = {f"tutorials/{name}.md" for name in ("explore-layers", "first-vectors", "stimuli", "tag-text")}
"""What they print depends on the included model, so it goes stale when that is trained further."""
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
OTHERS = [
    *sorted((ROOT / "results").glob("*.md")),
    *sorted((ROOT / "contributing").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "RELEASING", "SECURITY", "CHANGELOG")),
]
"""Documents with links but without code that is run."""
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\S+\.toml)\n")
EXTRA = re.compile(r"# pip install (?:'\.\[([\w-]+)\]'|(pandas[ \w]*))\n")
"""The first line of code that needs an extra or libraries that no extra has."""
PRINTS = re.compile(r"^ *print\(.*\)  # ([^:\n]+)", re.MULTILINE)
SHAPE = re.compile(r"\((?:\d+, )+\d+\)|^\d+$", re.MULTILINE)
"""A shape, or a line with nothing but a number."""


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def name_of(page: Path) -> str:
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


def title_of(code: str) -> str:
    extra = EXTRA.match(code)
    return extra[1] if extra else "elmokit"


def is_run(code: str) -> bool:
    extra = EXTRA.match(code)
    return extra is None or (extra[2] is not None and all(map(importlib.util.find_spec, extra[2].split())))


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    # Warnings of the libraries that elmokit integrates with are not errors.
    return [pytest.mark.filterwarnings("default")] if page.parent.name == "integrations" else []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of examples, in which the documents run, with a model and data of older programs besides."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", ".", dirs_exist_ok=True)
    shutil.copytree(ROOT / "examples", "examples")
    Path("srl.txt").write_text("Ada fixed it .\n1 Mira sold it |||\n")
    shutil.copytree(ROOT / "tests" / "data" / "bilm-tf-run", "bilm-tf-run")
    for name, text in TEXTS.items():
        for part in ("train", "dev", "test"):
            Path(f"{name}.{part}").write_text(text, encoding="utf-8")
    Path("questions.txt").write_text(f"What had snapped?\t{QA_PASSAGE}\n", encoding="utf-8")
    Path("ner_elmo.json").write_text(json.dumps(allennlp_configs.published("ner")), encoding="utf-8")
    shutil.copy(ROOT / "tests" / "data" / "allennlp-tasks" / "ner.tar.gz", "ner-elmo.tar.gz")
    save_model(random_model(), Path("elmo_weights.hdf5"))
    # A third of the text on which the tutorial trains.
    monkeypatch.setattr(pydoc_data.topics, "topics", dict(list(pydoc_data.topics.topics.items())[::3]))
    return tmp_path


def _assert_printed(printed: str, quoted: str) -> None:
    """Compare outputs; their numbers may differ by a few hundredths, as they do between processors."""
    number = re.compile(r"\d+\.\d+")
    assert number.sub("N", printed) == number.sub("N", quoted)
    now, then = ([float(text) for text in number.findall(output)] for output in (printed, quoted))
    assert now == pytest.approx(then, abs=0.03)


def _as_tuples(text: str) -> str:
    return re.sub(r"torch\.Size\(\[(.*?)\]\)", r"(\1)", text)


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page), marks=marks_of(page)) for page in PAGES])
@pytest.mark.usefixtures("short_probes")
def test_code_on_the_page_runs_and_prints_the_shapes_in_its_comments(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if page.parent.name == "integrations" and page.stem != "index":
        need_host(page.stem.removesuffix("-heads"))
    for code in blocks(page, "toml"):
        if name := NAMED.match(code):
            Path(name[1]).write_text(code, encoding="utf-8")
    names: dict[str, object] = {}
    is_new = False
    for language, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            is_new = is_run(code)
        if language == "python" and is_new:
            capsys.readouterr()
            exec(compile(code, page.name, "exec"), names)
            output = capsys.readouterr().out
            printed = iter(SHAPE.findall(_as_tuples(output)))
            for shape in SHAPE.findall(_as_tuples("\n".join(PRINTS.findall(code)))):
                assert shape in printed, f"{shape} is not printed, or not in this order"  # `in` advances the iterator
        if language == "text" and is_new and name_of(page) in PAGES_WITH_OUTPUT:
            _assert_printed(output, code)
        for line in code.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if line.startswith("elmokit "):
                monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True))
                with pytest.raises(SystemExit) as exit_:
                    main()
                assert not exit_.value.code, line


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("code", [pytest.param(code, id=title_of(code)) for code in blocks(README, "python")])
def test_code_of_the_readme_prints_what_it_says(code: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if extra := EXTRA.match(code):
        need_host(extra[1])
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == PRINTS.findall(code)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS, *NOTEBOOKS], ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    for target in [*re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text), *re.findall(r'src(?:set)?="([^":]+)"', text)]:
        assert (page.parent / target).exists(), f"{name_of(page)}: {target}"


@pytest.mark.parametrize("command", ["benchmarks/quote_results.py --check", "docs/make_install_lines.py"])
def test_what_a_program_writes_into_pages_is_current(command: str) -> None:
    ran = subprocess.run([sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_public_names_are_those_that_the_documents_list() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]", (DOCS / "reference" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(elmokit.__all__)
    assert all(getattr(elmokit, name) is not None for name in listed)
    assert set(listed) <= set(dir(elmokit))
    with pytest.raises(AttributeError, match="'Emlo'"):
        elmokit.Emlo  # noqa: B018


def test_the_reference_documents_every_public_name() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "python").glob("*.md"))
    documented = re.findall(r"^::: elmokit\.(\w+)$", pages, re.MULTILINE)
    assert sorted(set(documented) - {"errors"}) == sorted(set(elmokit.__all__) - {"ElmoError"})


def test_the_guide_explains_every_pooling() -> None:
    page = (DOCS / "how-to" / "compare-sentences.md").read_text(encoding="utf-8")
    table = page[page.index("| `--pool` |") :].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(POOLING_NAMES)


def test_the_map_of_files_is_complete() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in (ROOT / "elmokit").iterdir():
        # A directory that was moved away can have left compiled files behind.
        is_left_over = path.is_dir() and not any(file.suffix != ".pyc" for file in path.rglob("*.*"))
        if path.name not in ("__init__.py", "__main__.py", "py.typed") and not is_left_over:
            assert f"`{path.name}" in text, f"{path.name} is not on the map of CONTRIBUTING.md"


def test_the_index_of_results_is_complete() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "results").glob("*.md"):
        assert path.name == "README.md" or f"]({path.name})" in text, f"{path.name} is not in results/README.md"
