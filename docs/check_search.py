"""Search the built site as a browser does, and check that what people type finds the page that answers it.

    python docs/check_search.py site             check
    python docs/check_search.py site QUERY ...   print what each query finds

It needs Node.js, because it runs the site's own search, which is JavaScript.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".mjs")
EXPECTED = {
    "npz": "reference/vector-files/",
    "elmokit embed": "reference/cli/embed/",
    "embed_sentence": "how-to/migrate/allennlp/",
    "batch_to_ids": "how-to/migrate/allennlp/",
    "from_pretrained": "reference/python/embed/",
    "elmokit.compat.allennlp": "how-to/migrate/allennlp/",
    "ELMOKIT_BACKEND": "reference/environment/",
    "batch_size": "reference/settings/bilm/",
    "resume": "how-to/resume/",
    "perplexity": "how-to/surprisal/",
    "spacy": "how-to/integrations/spacy/",
    "int8": "how-to/speed/",
    "browser": "how-to/browser/",
}
"""What people type, and a page that must be among the first results."""
N_RESULTS = 4
UNWANTED = ("source/",)
"""Where paths of pages start that search must not find: source code."""


def search(site: Path, queries: list[str]) -> dict[str, list[str]]:
    """Return the paths of the pages that each query finds, best first.

    Raises:
        FileNotFoundError: Node.js is not installed.
    """
    node = shutil.which("node")
    if node is None:
        raise FileNotFoundError("Node.js is not installed.")
    command = [node, str(SCRIPT), str(site), *queries]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[str]] = json.loads(ran.stdout)
    return found


def problems(site: Path) -> list[str]:
    """Return what is wrong with the results of a site's search, as sentences."""
    found = search(site, list(EXPECTED))
    wrong = []
    for query, page in EXPECTED.items():
        first = found[query][:N_RESULTS]
        if page not in first:
            wrong.append(f"{query!r} does not find {page} among the first {N_RESULTS} results: {first}")
        if unwanted := [path for path in found[query] if path.startswith(UNWANTED)]:
            wrong.append(f"{query!r} finds pages that search must skip: {unwanted}")
    return wrong


if __name__ == "__main__":
    built, *typed = sys.argv[1:]
    try:
        if typed:
            for query, paths in search(Path(built), typed).items():
                print(query, *(f"    {path}" for path in paths[:8]), sep="\n")
        elif wrong := problems(Path(built)):
            sys.exit("\n".join(wrong))
    except FileNotFoundError as error:
        print(f"The search of the site was not checked: {error}")
