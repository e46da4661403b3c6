from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import TextError
from elmokit.evaluation.sense_files import (
    Instance,
    SenseSentence,
    find_sense_set,
    read_inventory,
    read_keys,
    read_sense_xml,
)
from elmokit.text.tokenize import split_tokens

HEAD = '<?xml version="1.0" encoding="UTF-8" ?>\n<corpus lang="en" source="x">\n<text id="d000">\n'
SENTENCE = """<sentence id="d000.s000">
<wf lemma="the" pos="DET">The</wf>
<instance id="d000.s000.t000" lemma="Primary election" pos="noun">primary
election</instance>
<wf lemma="&amp;" pos=".">&amp;</wf>
<instance id="d000.s000.t001" lemma="take_place" pos="VERB">took place</instance>
</sentence>
"""
TAIL = "</text>\n</corpus>\n"
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def text(name: str, content: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return path

    return text


def test_an_element_with_several_words_gives_several_tokens(write: Write) -> None:
    empty = '<sentence id="d000.s001"></sentence>'
    path = write("x.data.xml", HEAD + SENTENCE + empty + TAIL)
    words = ["The", "primary", "election", "&", "took", "place"]
    instances = [
        Instance("d000.s000.t000", "primary_election", "NOUN", 1, 3),
        Instance("d000.s000.t001", "take_place", "VERB", 4, 6),
    ]
    assert list(read_sense_xml(path)) == [SenseSentence(words, instances), SenseSentence([], [])]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1, max_size=5))
def test_any_text_survives_a_round_trip(tmp_path_factory: pytest.TempPathFactory, pieces: list[str]) -> None:
    from xml.sax.saxutils import escape

    path = tmp_path_factory.mktemp("senses") / "x.data.xml"
    elements = "".join(f"<wf>{escape(piece)}</wf>" for piece in pieces)
    path.write_text(f"<corpus><sentence>{elements}</sentence></corpus>", encoding="utf-8", newline="\n")
    (sentence,) = read_sense_xml(path)
    expected = [word for piece in pieces for word in split_tokens(" ".join(piece.splitlines()))]
    assert sentence.words == expected


def test_key_lines_with_the_same_id_are_merged(write: Write) -> None:
    path = write(
        "x.gold.key.txt", "d0.t0 long%3:00:02:: tall%5:00:00::\n\nd0.t1 play%1:10:01::\nd0.t0 long%3:00:01::\n"
    )
    expected = {"d0.t0": ("long%3:00:02::", "tall%5:00:00::", "long%3:00:01::"), "d0.t1": ("play%1:10:01::",)}
    assert read_keys(path) == expected


def test_an_inventory_is_a_table_or_wordnets_index_sense(write: Write) -> None:
    table = write("senses.tsv", "# lemma\tpos\tkeys\nbe like\tverb\tb%2:01:: b%2:00::\n.22\tNOUN\t.22%1:06:00::\n")
    assert read_inventory(table) == {("be_like", "VERB"): ("b%2:01::", "b%2:00::"), (".22", "NOUN"): (".22%1:06:00::",)}
    index = write("index.sense", "long%3:00:01:: 00001 2 5\nlong%4:02:00:: 00002 1 9\nlong%5:00:00:tall:00 00003 1 0\n")
    assert read_inventory(index) == {
        ("long", "ADJ"): ("long%5:00:00:tall:00", "long%3:00:01::"),
        ("long", "ADV"): ("long%4:02:00::",),
    }


def test_a_set_is_found_by_its_file_or_its_directory(write: Write, tmp_path: Path) -> None:
    data = write("a/x.data.xml", "")
    gold = write("a/x.gold.key.txt.xz", "")
    found = find_sense_set(data)
    assert (found.name, found.data, found.gold) == ("x", data, gold)
    assert find_sense_set(tmp_path / "a") == found
    write("a/y.data.xml", "")
    with pytest.raises(TextError, match="exactly one"):
        find_sense_set(tmp_path / "a")
