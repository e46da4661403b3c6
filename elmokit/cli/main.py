"""The ``elmokit`` command: the table of commands, and error handling."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import click
from click.shell_completion import get_completion_class

from elmokit.cli.command import group_of
from elmokit.cli.running import PROGRAM, VERSION_MESSAGE, CommandInterrupted
from elmokit.errors import INTERRUPTED, ElmoError, is_out_of_memory, needs_torch
from elmokit.storage.text_files import LARGEST_LINE_LIMIT
from elmokit.version import __version__

MAX_SHOWN = 4000
"""Maximum length of an error message, in characters; it may quote an argument or line of any length."""
BAD_INPUT = 2

COMMANDS = {
    "Vectors": {
        "embed": ("elmokit.cli.embed:embed", "Compute ELMo vectors for a text file."),
        "neighbors": ("elmokit.cli.neighbor_commands", "Find the most similar word occurrences in a corpus."),
        "serve": ("elmokit.cli.serve:serve", "Serve a model over HTTP, and explore it in a browser."),
    },
    "Models": {
        "models": ("elmokit.cli.model_commands:models", "List the models that can be opened by name."),
        "info": ("elmokit.cli.model_commands:info", "Show a model's architecture, size and provenance."),
        "convert": ("elmokit.cli.model_commands:convert", "Convert a model to another format."),
        "bench": ("elmokit.cli.model_commands:bench", "Measure how fast this machine computes a model."),
    },
    "Training": {
        "vocab": ("elmokit.cli.training_commands:vocab", "Build a vocabulary from tokenized text."),
        "train": ("elmokit.cli.training_commands:train", "Pre-train a biLM on tokenized text."),
        "distill": ("elmokit.cli.training_commands:distill", "Train a small biLM to imitate a large one."),
        "finetune": ("elmokit.cli.training_commands:finetune", "Fine-tune a biLM on your own text."),
    },
    "Evaluation and tasks": {
        "surprisal": (
            "elmokit.cli.evaluation_commands:surprisal",
            "Compute the surprisal of each token or word of text.",
        ),
        "evaluate": (
            "elmokit.cli.evaluation_commands",
            "Evaluate a model: perplexity, minimal pairs, similarity, probes.",
        ),
        "task": ("elmokit.cli.task_commands", "Train and apply task models: NER, SST, NLI, SRL, coreference, QA."),
    },
    "Drop-in replacements": {
        "allennlp-elmo": (
            "elmokit.cli.allennlp_commands:allennlp_elmo",
            "Embed a text like `allennlp elmo`, with the same options.",
        ),
        "allennlp-vocab": (
            "elmokit.cli.allennlp_commands:allennlp_vocab",
            "Embed words like AllenNLP's create_elmo_embeddings_from_vocab.py.",
        ),
        "bilm-tf": ("elmokit.cli.bilm_tf_commands", "Run bilm-tf's train_elmo, restart, run_test and dump_weights."),
    },
    "Help": {
        "help": ("elmokit.cli.main:help_", "Show help for elmokit or a command."),
        "version": ("elmokit.cli.main:version", "Show the version."),
        "completion": ("elmokit.cli.main:completion", "Print a shell completion script."),
    },
}
"""Commands by purpose: the function, or the module of a group, and the line in ``elmokit --help``."""


def set_limits(*, max_line_bytes: Annotated[int | None, click.IntRange(1, LARGEST_LINE_LIMIT)] = None) -> None:
    """Compute ELMo embeddings, train ELMo models, and use them in tasks.

    With --raw, text is split into sentences and tokens. Otherwise, it must have one sentence per line, with spaces
    between tokens: "It rained , so we left ." Text files must be in UTF-8.

    `elmokit completion --help` shows how to set up Tab completion.

    Args:
        max_line_bytes: Maximum length of a line of text, in bytes. Must come before the command.  [default: 16777216]

    Examples:
        elmokit embed essay.txt vectors.npz --raw
        elmokit info --model original
    """
    if max_line_bytes is not None:
        from elmokit.storage.text_files import MAX_LINE_VARIABLE

        os.environ[MAX_LINE_VARIABLE] = str(max_line_bytes)


def help_(command: tuple[str, ...] = ()) -> None:
    """Show help for COMMAND, or for elmokit.

    This is the same as COMMAND --help.

    Examples:
        elmokit help embed
        elmokit help task train
    """
    context = click.get_current_context().find_root()
    for name in command:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands.", context)
        _, inner, _ = group.resolve_command(context, [name])
        assert inner is not None  # resolve_command raises for an unknown name
        context = click.Context(inner, info_name=name, parent=context)
    click.echo(context.get_help())


def version(*, all_: bool = False) -> None:
    """Show the version of elmokit.

    Args:
        all_: Also show the versions of Python, the system and the main libraries, for bug reports.

    Examples:
        elmokit version
        elmokit version --all
    """
    click.echo(VERSION_MESSAGE % {"prog": PROGRAM, "version": __version__})
    if not all_:
        return
    import platform
    from importlib import metadata

    from elmokit.engine.instruction_sets import available_sets

    click.echo(f"Python {platform.python_version()}")
    click.echo(f"{platform.platform()}, {', '.join(available_sets())}")
    for library in ("numpy", "torch"):
        try:
            click.echo(f"{library} {metadata.version(library)}")
        except metadata.PackageNotFoundError:
            click.echo(f"{library} is not installed")


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script that lets your shell complete commands and options with the Tab key.

    For Bash or Zsh, add the line below to ~/.bashrc or ~/.zshrc. For fish, run the last command once.

    Examples:
        eval "$(elmokit completion bash)"
        eval "$(elmokit completion zsh)"
        elmokit completion fish > ~/.config/fish/completions/elmokit.fish
    """
    completer = get_completion_class(shell)
    assert completer is not None  # click has all three
    root = click.get_current_context().find_root().command
    # Not `source()`, which starts Bash to ask for its version.
    instance = completer(root, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    click.echo(instance.source_template % instance.source_vars())


HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
elmokit = group_of(set_limits, PROGRAM, tables=COMMANDS, context_settings=HELP)
click.version_option(__version__, "-V", "--version", message=VERSION_MESSAGE)(elmokit)


def main() -> None:
    """Run the command line.

    Errors that the user can fix are printed as one line on standard error, with exit code 2.
    """
    _prepare_process()
    command = next((argument for argument in sys.argv[1:] if argument in elmokit.entries), "")
    try:
        with needs_torch(f"{PROGRAM} {command}"):
            sys.exit(elmokit.main(prog_name=PROGRAM, standalone_mode=False))
    except (ElmoError, click.ClickException) as error:
        _fail(_message_of(error), BAD_INPUT)
    except BrokenPipeError:  # the reader of our output has exited, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        message = str(error)
        if not error.filename:
            message = f"Reading or writing failed: {error.strerror or error}."
        _fail(message, BAD_INPUT)
    except CommandInterrupted as stopped:
        _fail(str(stopped), INTERRUPTED)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", INTERRUPTED)
    except (MemoryError, RuntimeError) as error:  # a RecursionError is a RuntimeError, too
        if not is_out_of_memory(error):
            raise
        _fail(
            "Out of memory. Use a smaller batch, shorter lines, a smaller model or a machine with more memory.",
            BAD_INPUT,
        )


def _prepare_process() -> None:
    """Set up signals, warnings and the standard streams."""
    if sys.stderr is None:  # some background programs close it
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    # SIGTERM acts like Ctrl-C: temporary files are removed, and resumable commands print how to resume.
    is_main_thread = threading.current_thread() is threading.main_thread()  # no other thread can set handlers
    if is_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.formatwarning = partial(_format_warning, shown=set())
    _prepare_standard_output()


def _prepare_standard_output() -> None:
    """Write UTF-8 to files and pipes, like all other output; on Windows, Python would use the code page."""
    if not isinstance(sys.stdout, io.TextIOWrapper):  # closed, or replaced by the caller
        return
    if sys.stdout.isatty() or os.environ.get("PYTHONIOENCODING"):  # keep the encoding that the reader expects
        sys.stdout.reconfigure(errors="backslashreplace")
    else:
        sys.stdout.reconfigure(encoding="utf-8", errors=sys.stdout.errors)


def _message_of(error: ElmoError | click.ClickException) -> str:
    """Return an error's text; for a usage error, add what to type instead and where to find help."""
    if not isinstance(error, click.ClickException):
        return str(error)
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        message = f"{error.message}{_advice(error)}"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        if not message.endswith((".", "?")):
            message += "."
        message += f" Try '{error.ctx.command_path} --help'."
    return message


def _advice(error: click.NoSuchOption) -> str:
    """Return the replacement of an unknown option, or the option with the most similar name."""
    from elmokit.config import did_you_mean
    from elmokit.former_names import FLAGS, SETTINGS, replacement

    name = error.option_name.strip("-")
    reads_text = error.ctx is not None and any(param.name == "text_kind" for param in error.ctx.command.params)
    if reads_text and name in FLAGS:
        return f" {FLAGS[name]}"
    former = replacement(SETTINGS, name.removeprefix("no-").replace("-", "_"))
    if former:
        return former
    nearest = error.possibilities[0] if error.possibilities else ""  # more than one rarely helps
    if nearest and did_you_mean(name, [nearest.strip("-")]):
        return f" Did you mean {nearest!r}?"
    return ""


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
    *,
    shown: set[str],
) -> str:
    """Format a warning as one line starting with the program's name, like an error; empty if already shown."""
    # Python's own record of shown warnings is lost when a library changes the filters.
    if str(message) in shown:
        return ""
    shown.add(str(message))
    kind = "warning" if category is UserWarning else category.__name__
    return f"{PROGRAM}: {kind}: {message}\n"


def _fail(message: str, code: int) -> None:
    line = " ".join(message.split())
    if len(line) > MAX_SHOWN and code == BAD_INPUT:  # a command to resume is useless if truncated
        line = f"{line[: MAX_SHOWN // 2]} ... {line[-MAX_SHOWN // 2 :]}"  # the remedy is at the end
    print(f"{PROGRAM}: {line}", file=sys.stderr)
    sys.exit(code)
