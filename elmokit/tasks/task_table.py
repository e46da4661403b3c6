"""The six tasks by name."""

from __future__ import annotations

from elmokit.tasks.coref import CorefTask
from elmokit.tasks.ner import NerTask
from elmokit.tasks.nli import NliTask
from elmokit.tasks.qa import QaTask
from elmokit.tasks.srl import SrlTask
from elmokit.tasks.sst import SstTask
from elmokit.tasks.task import AnyTask

TASKS: dict[str, AnyTask] = {
    "ner": NerTask(),
    "sst": SstTask(),
    "nli": NliTask(),
    "srl": SrlTask(),
    "coref": CorefTask(),
    "qa": QaTask(),
}
