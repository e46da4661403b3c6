"""The ``elmokit`` command."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import warnings

import click

from elmokit.cli.common import PROGRAM, CommandInterrupted
from elmokit.cli.options import CommandGroup
from elmokit.errors import ElmoError, is_out_of_memory, needs_torch

BAD_INPUT = 2
INTERRUPTED = 130

COMMANDS = {
    "Vectors": {
        "embed": ("elmokit.cli.embed", "Compute ELMo vectors for a text file."),
        "neighbors": ("elmokit.cli.neighbors", "Find the most similar word occurrences in a corpus."),
        "serve": ("elmokit.cli.serve", "Answer requests over HTTP, and explore a model in a browser."),
    },
    "Models": {
        "models": ("elmokit.cli.models", "List the models that can be opened by name."),
        "info": ("elmokit.cli.info", "Show a model's architecture, size and provenance."),
        "convert": ("elmokit.cli.convert", "Convert a model to another format."),
        "bench": ("elmokit.cli.bench", "Measure how fast this machine computes a model."),
    },
    "Training": {
        "vocab": ("elmokit.cli.vocab", "Build a vocabulary from tokenized text."),
        "train": ("elmokit.cli.train", "Pre-train a biLM on tokenized text."),
        "distill": ("elmokit.cli.distill", "Train a small biLM to do what a large one does."),
        "finetune": ("elmokit.cli.finetune", "Fine-tune a biLM on your own text."),
        "align": ("elmokit.cli.align", "Map the vectors of a model into the space of another, with a dictionary."),
    },
    "Evaluation and tasks": {
        "evaluate": (
            "elmokit.cli.evaluate",
            "Measure how good a model is: perplexity, minimal pairs, probes.",
        ),
        "task": ("elmokit.cli.task", "Train and apply task models: NER, SST, NLI, SRL, coreference, QA."),
    },
    "Drop-in replacements": {
        "allennlp-elmo": ("elmokit.cli.allennlp_elmo", "Run `allennlp elmo` with the options of AllenNLP."),
        "allennlp-vocab": ("elmokit.cli.allennlp_elmo", "Run AllenNLP's create_elmo_embeddings_from_vocab.py."),
        "bilm-tf": ("elmokit.cli.bilm_tf", "Run train_elmo, restart, run_test and dump_weights of bilm-tf."),
    },
}
"""By purpose: each command's module, in which it is a variable of the same name, and its line in ``elmokit --help``."""
MODULES = {name: module for commands in COMMANDS.values() for name, (module, _) in commands.items()}
SUBCOMMANDS = {
    "evaluate": {
        "all": "elmokit.cli.evaluate_all",
        "perplexity": "elmokit.cli.evaluate_perplexity",
        "pos": "elmokit.cli.evaluate_probes",
        "wsd": "elmokit.cli.evaluate_probes",
    },
    "task": {
        "import": "elmokit.cli.task_import",
        "open": "elmokit.cli.task_open",
        "sweep": "elmokit.cli.task_sweep",
        "weights": "elmokit.cli.task_sweep",
    },
}
"""Commands of groups that have modules of their own."""
WIDTH = max(map(len, MODULES))


class _LazyGroup(CommandGroup):
    """A group that imports a command's module when the command is used, so that ``elmokit --help`` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return None
        command = _load(MODULES[cmd_name], cmd_name)
        if isinstance(command, click.Group):
            for name, module in SUBCOMMANDS.get(cmd_name, {}).items():
                command.add_command(_load(module, name), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in MODULES and not name.startswith("-"):
            from elmokit.config import did_you_mean

            raise click.UsageError(f"No such command {name!r}. {did_you_mean(name, MODULES)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for purpose, commands in COMMANDS.items():
            with formatter.section(purpose):
                formatter.write_dl([(f"{name:<{WIDTH}}", text) for name, (_, text) in commands.items()])


def _load(module: str, name: str) -> click.Command:
    # Names that Python uses itself have an underscore.
    variable = f"{name}_" if name in ("all", "import", "open") else name.replace("-", "_")
    command: click.Command = getattr(importlib.import_module(module), variable)
    return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name=PROGRAM)
@click.option(
    "--max-line-bytes",
    type=click.IntRange(min=1),
    help="Longest line that a text may have. Give it before the command.  [default: 16777216]",
)
def elmokit(max_line_bytes: int | None) -> None:
    """Compute ELMo embeddings, train ELMo models, and use them in tasks.

    Text is read in UTF-8, one sentence per line, with spaces between tokens: "It rained , so we left ." For other text,
    `elmokit embed --raw` splits sentences and tokens.

    \b
    Examples:
      elmokit embed corpus.txt vectors.hdf5
      elmokit info --model original
    """
    if max_line_bytes is not None:
        from elmokit.storage.text_files import MAX_LINE_VARIABLE

        os.environ[MAX_LINE_VARIABLE] = str(max_line_bytes)


def main() -> None:
    """Run the command line.

    An error that the user can fix is printed as one line on standard error, with exit code 2.
    """
    # As Ctrl-C: temporary files are removed on the way out, and what can be resumed says how.
    is_main_thread = threading.current_thread() is threading.main_thread()  # only it can set handlers
    if is_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.formatwarning = _format_warning
    command = next((argument for argument in sys.argv[1:] if argument in MODULES), "")
    try:
        with needs_torch(f"{PROGRAM} {command}"):
            sys.exit(elmokit.main(prog_name=PROGRAM, standalone_mode=False))
    except (ElmoError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        _fail(message, BAD_INPUT)
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the program that reads our output has ended, as in `... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        _fail(str(error), BAD_INPUT)
    except CommandInterrupted as stopped:
        _fail(str(stopped), INTERRUPTED)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", INTERRUPTED)
    except (MemoryError, RuntimeError) as error:  # a RecursionError is a RuntimeError, too
        if not is_out_of_memory(error):
            raise
        _fail("Out of memory. Use a smaller batch, shorter lines, a smaller model or a larger machine.", BAD_INPUT)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning as one line that starts with the program's name, like an error."""
    return f"{PROGRAM}: {'warning' if category is UserWarning else category.__name__}: {message}\n"


def _fail(message: str, code: int) -> None:
    print(f"{PROGRAM}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
