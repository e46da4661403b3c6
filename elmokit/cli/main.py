"""The ``elmokit`` command."""

from __future__ import annotations

import os
import sys

import click

from elmokit.cli.allennlp_elmo import allennlp_elmo, allennlp_vocab
from elmokit.cli.common import PROGRAM
from elmokit.cli.convert import convert
from elmokit.cli.embed import embed
from elmokit.cli.finetune import finetune
from elmokit.cli.info import info
from elmokit.cli.neighbours import neighbours
from elmokit.cli.perplexity import perplexity
from elmokit.cli.probe import probe
from elmokit.cli.task import task
from elmokit.cli.task_import import import_
from elmokit.cli.task_sweep import sweep, weights
from elmokit.cli.train import train
from elmokit.cli.vocab import vocab
from elmokit.errors import ElmoError

BAD_INPUT = 2
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name=PROGRAM)
def elmokit() -> None:
    """ELMo on today's Python: embed text, open and convert published models, train your own, use them in models."""


for command in (
    embed,
    info,
    convert,
    vocab,
    train,
    finetune,
    perplexity,
    task,
    probe,
    neighbours,
    allennlp_elmo,
    allennlp_vocab,
):
    elmokit.add_command(command)
for command in (import_, sweep, weights):
    task.add_command(command)


def main() -> None:
    """Run the command line; what the user can mend is one line on standard error and exit code 2."""
    try:
        sys.exit(elmokit.main(prog_name=PROGRAM, standalone_mode=False))
    except (ElmoError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        _fail(message, BAD_INPUT)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has gone
            sys.exit(1)
        _fail(str(error), BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", INTERRUPTED)


def _fail(message: str, code: int) -> None:
    print(f"{PROGRAM}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
