"""One process of a training: the main one starts the run or continues it, and all of them train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import torch

from elmokit.errors import ElmoError
from elmokit.training.bilm_run import FILES, TrainingSetup
from elmokit.training.distributed import World, init_distributed, training_device
from elmokit.training.loop import run_training
from elmokit.training.reports import TrainingCallback, TrainingDisplay
from elmokit.training.results import TensorBoardLog, TrainingResult, finish_run
from elmokit.training.start import TrainingRequest, start_or_continue
from elmokit.training.training_run import Run


class TrainingProcess:
    """This process of a training, from :func:`training_process`."""

    def __init__(self, run: Run, world: World, device: torch.device, report: TrainingCallback) -> None:
        self.run, self.world, self.device, self.report = run, world, device, report
        self.setup: TrainingSetup | None = None
        self.open = ExitStack()
        """What is open until the end: the run, and the log for TensorBoard."""
        self._others_wait = world.is_main_process

    @property
    def is_main(self) -> bool:
        """Whether this process starts the run, and writes its files."""
        return self.world.is_main_process

    def start(self, request: TrainingRequest) -> None:
        """Start a training, or continue that of the same request. Only the main process calls this."""
        request.check(self.run.folder)
        self.open.enter_context(self.run)
        self.setup = start_or_continue(self.run, request, self.world.size, self.report)

    def tell_others(self, error: ElmoError | None = None) -> None:
        """Tell the processes that wait in :meth:`train` that the run is started, or why it is not."""
        if self._others_wait:
            self._others_wait = False
            self.world.broadcast((error, self.run.committed))

    def train(self) -> TrainingResult:
        """Train until the end, and return the result. Every process must call this.

        Raises:
            ElmoError: The main process could not start the run, or the training failed.
        """
        if self.is_main:
            self.tell_others()
        else:
            error, self.run.committed = self.world.broadcast(None)
            if error is not None:
                raise error
        # The others read what the main process has written.
        setup = TrainingSetup.of(self.run.committed) if self.setup is None else self.setup
        report = self.report
        if setup.config.tensorboard and self.is_main:
            n_steps, directions = self.run.progress.get("n_steps", 0), setup.config.model.direction_names
            report = self.open.enter_context(closing(TensorBoardLog(self.run.folder, n_steps, directions, report)))
        end = run_training(setup, self.run, report, world=self.world, device=self.device)
        if not self.is_main:
            return TrainingResult(self.run.folder, end, None, is_main_process=False)
        return finish_run(self.run.folder, setup.config, end, self.report)


@contextmanager
def training_process(
    out: str | Path, device: str | torch.device, overwrite: bool, report: TrainingCallback | None
) -> Iterator[TrainingProcess]:
    """Connect this process to the others of a training, if there are any, while the block runs.

    An error of the main process is raised in the others, too, so that none waits for it.

    Args:
        out: The run directory.
        device: Where to train.
        overwrite: Start over: replace the run.
        report: Called with reports in the main process; None prints them.
    """
    device = training_device(device)
    with init_distributed(device) as world:
        run = Run(out, None, FILES, overwrite)
        process = TrainingProcess(run, world, device, TrainingDisplay() if report is None else report)
        try:
            with process.open:
                yield process
        except ElmoError as error:
            process.tell_others(error)
            raise
