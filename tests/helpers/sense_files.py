"""A small sense-tagged corpus, and a function that writes one in the format of the unified framework."""

from __future__ import annotations

from pathlib import Path

from elmokit.evaluation.sense_files import SenseSet

TRAIN = [  # words; (lemma, pos, start, stop, key) of each instance
    ("the cat sat on the mat .", [("cat", "NOUN", 1, 2, "cat%1:05::"), ("sit", "VERB", 2, 3, "sit%2:35::")]),
    ("the dog ran .", [("cat", "NOUN", 1, 2, "cat%1:18:: cat%1:99::"), ("run", "VERB", 2, 3, "run%2:38::")]),
    ("the mat .", []),
    ("the cat ran on .", [("cat", "NOUN", 1, 2, "cat%1:05::"), ("run_on", "VERB", 2, 4, "run_on%2:30::")]),
]
TEST = [
    ("the dog ran .", [("cat", "NOUN", 1, 2, "cat%1:18::"), ("mat", "NOUN", 2, 3, "mat%1:06::")]),
    ("the cat sat on .", [("cat", "NOUN", 1, 2, "cat%1:05::"), ("cat", "VERB", 2, 3, "cat%2:29::")]),
]
Rows = list[tuple[str, list[tuple[str, str, int, int, str]]]]


def write_set(folder: Path, name: str, rows: Rows) -> SenseSet:
    sentences, keys = [], []
    for number, (text, instances) in enumerate(rows):
        words = text.split()
        elements, place = [], 0
        for count, (lemma, pos, start, stop, key) in enumerate(instances):
            elements += [f"<wf>{word}</wf>" for word in words[place:start]]
            name_ = f"s{number}.t{count}"
            elements.append(
                f'<instance id="{name_}" lemma="{lemma}" pos="{pos}">{" ".join(words[start:stop])}</instance>'
            )
            keys.append(f"{name_} {key}\n")
            place = stop
        elements += [f"<wf>{word}</wf>" for word in words[place:]]
        sentences.append(f"<sentence>{''.join(elements)}</sentence>\n")
    data, gold = folder / f"{name}.data.xml", folder / f"{name}.gold.key.txt"
    data.write_text(f"<corpus>{''.join(sentences)}</corpus>")
    gold.write_text("".join(keys))
    return SenseSet(name, data, gold)


INVENTORY = {
    ("cat", "NOUN"): ("cat%1:18::", "cat%1:05::"),
    ("cat", "VERB"): ("cat%2:29::",),
    ("mat", "NOUN"): ("mat%1:07::", "mat%1:06::"),
}
