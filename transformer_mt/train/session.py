"""One sitting of training in a run folder: begin or resume, update, log, save, validate, and leave a `model/`."""

import platform
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import transformer_mt
from transformer_mt.atomic import new_folder
from transformer_mt.config import Config
from transformer_mt.config.file import write_config
from transformer_mt.data.batching import mix
from transformer_mt.data.files import text_lines
from transformer_mt.data.store import Store
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.decode.translator import Translator
from transformer_mt.distributed import Process, on_first_rank
from transformer_mt.errors import RunError, Stopped
from transformer_mt.model.card import model_card
from transformer_mt.model.folder import (
    START,
    build,
    load_weights,
    model_settings,
    read_model_settings,
    weights,
    write_model,
)
from transformer_mt.train import checkpoint, log
from transformer_mt.train.checkpoint import Progress, Saved, best_steps, keep_or_reset
from transformer_mt.train.loop import DEVICE_TOKENS, NO_SUMS, Trainer, batches_from
from transformer_mt.train.signals import StopFlag, stop_flag
from transformer_mt.train.validation import validation_loss, validation_scores


@dataclass
class Session:
    """A run folder with its model, ready to be trained; made by `open_session`."""

    config: Config
    run: Path
    process: Process
    console: log.Console
    trainer: Trainer
    tokenizer: Tokenizer
    progress: Progress
    stop: StopFlag
    notes: list[str]
    """What to say once it is clear that there is something to train."""
    validations: list[dict[str, Any]]
    """Those made up to this update; the same on all ranks."""

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.run / "checkpoints"

    def summary(self) -> str:
        """What is about to be trained, on what, and how high the learning rate will go."""
        trainer, peak = self.trainer, max(1, self.config.training.learning_rate.warmup_steps)
        count = sum(parameter.numel() for parameter in trainer.model.parameters())
        return (
            f"{count / 1e6:.2f} million parameters, {len(trainer.store)} pairs, "
            f"{self.process.ranks} x {self.process.device}, {str(trainer.precision).removeprefix('torch.')}, "
            f"{torch.get_num_threads()} threads, highest rate {trainer.rate(peak):.3g} at step {peak}"
        )

    def finished(self) -> str | None:
        """Why there is nothing more to train, if so."""
        training = self.config.training
        if training.max_steps is not None and self.progress.step >= training.max_steps:
            return f"{self.progress.step} updates made, training.max_steps is {training.max_steps}"
        if training.max_epochs is not None and self.progress.epoch >= training.max_epochs:
            return f"{self.progress.epoch} epochs done, training.max_epochs is {training.max_epochs}"
        if self._out_of_patience():
            return f"no better {training.validation.metric} for {training.validation.patience} validations"
        return None

    def train(self) -> None:
        """Updates until there is nothing more to train or a signal comes."""
        board, step = self.config.training.tensorboard, self.progress.step
        metrics = log.Metrics(self.run, enabled=self.process.first, tensorboard=board, step=step)
        try:
            self._catch_up(metrics)
            for batch in batches_from(self.trainer.store, self.config.training, self.progress):
                if self.finished():
                    break
                begin = time.perf_counter()
                step = self.progress.step
                stopped = self.trainer.update(batch, self.progress, self.stop)
                self.progress.seconds += time.perf_counter() - begin
                self.progress.sums["seconds"] += time.perf_counter() - begin
                if self.progress.step > step:
                    self._after_update(metrics, leaving=stopped)
                if stopped:
                    self._leave()
            self._end(metrics)
        except RuntimeError:
            saved = (self.checkpoints / checkpoint.name_of(self.progress.step)).is_dir()
            if not (self.stop.signal_number and self.process.ranks > 1 and saved):
                raise
            raise self._stopped() from None  # other ranks left a validation before us, on the same signal
        finally:
            metrics.close()
            self.console.close()

    def _after_update(self, metrics: log.Metrics, *, leaving: bool) -> None:
        """Logs, saves and validates, in this order, when it is time to; a validation is left to the next session."""
        training, step = self.config.training, self.progress.step
        if step % training.log_every_steps == 0 or step == training.max_steps:
            self._log(metrics)
        self.console.bar(step, training.max_steps, "update")
        validate = step % training.validation.every_steps == 0
        if validate or step % training.checkpoint.every_steps == 0:
            self._save(planned=True)
        if validate and not leaving:
            self._validate(metrics)

    def _log(self, metrics: log.Metrics) -> None:
        progress = self.progress
        event = log.train_event(progress.step, progress.sums, self.trainer.rate(progress.step), progress.epoch)
        progress.sums = dict(NO_SUMS)
        metrics.write(event)
        limit = self.config.training.max_steps
        left = (limit - progress.step) * progress.seconds / progress.step if limit else None
        self.console.line(log.train_line(event, limit, left))

    def _save(self, *, planned: bool = False) -> None:
        """Writes a checkpoint on the first rank, `planned` by the config or where a session ends; removes old ones."""
        config, machine = self.config.model_dump(mode="json"), machine_record(self.process)
        self.progress.loss_scale = self.trainer.scaler.state_dict()
        record = {"planned": planned, "config": config, "machine": machine}

        def save() -> None:
            model, moments = weights(self.trainer.model), self.trainer.moments()
            checkpoint.save(self.checkpoints, model, moments, self.progress, record)
            self._prune()

        on_first_rank(save)

    def _prune(self) -> None:
        rules = self.config.training.checkpoint
        for name in checkpoint.prune(self.checkpoints, rules.keep_last, rules.keep_resumable, self._best_steps()):
            self.console.line(f"removed checkpoint {name}")

    def _validate(self, metrics: log.Metrics) -> None:
        """Measures on all ranks; the first one writes it down and marks the best checkpoint."""
        begin = time.perf_counter()
        training = self.config.training
        event: dict[str, Any] = {"event": "validation", "step": self.progress.step}
        store = Store(self.run / "ids", "validation")
        event |= validation_loss(
            self.trainer.loss, store, self.progress.device_tokens, self.trainer.start, self.process
        )
        if training.validation.translate:
            translator = Translator(self.trainer.model, self.tokenizer, self.config.decoding, self.trainer.start)
            texts = (self.run / "corpus" / f"validation.{language}" for language in self._languages())
            sides = [list(text_lines(path)) for path in texts]
            event |= validation_scores(translator, sides[0], sides[1], self.config, self.process, self.leave_if_asked)
        event["seconds"] = time.perf_counter() - begin
        event = on_first_rank(lambda: event)
        metrics.write(event)
        self.validations.append(event)
        self.console.line(log.validation_line(event, self._best_steps()[:1] == [event["step"]]))
        self._mark_best()

    def _mark_best(self) -> None:
        """Points `best` to the best checkpoint, and removes the one that was it before."""
        if self.process.first:
            if best := self._best_there():
                checkpoint.mark_best(self.checkpoints, best[0])
            self._prune()

    def _best_there(self) -> list[int]:
        """The best steps whose checkpoints are there: rules that changed on the way may have removed some."""
        there = set(map(checkpoint.step_of, checkpoint.checkpoints(self.checkpoints)))
        every = best_steps(self.validations, self.config.training.validation.metric, len(self.validations))
        return [step for step in every if step in there][: self.config.training.checkpoint.keep_best]

    def _languages(self) -> tuple[str, str]:
        return self.config.languages.source, self.config.languages.target

    def _catch_up(self, metrics: log.Metrics) -> None:
        """Does what was due when the last session ended between saving and measuring, or marking the best."""
        step, every = self.progress.step, self.config.training.validation.every_steps
        if step and step % every == 0 and not self._validated():
            self._validate(metrics)
        self._mark_best()

    def _validated(self) -> bool:
        return any(event["step"] == self.progress.step for event in self.validations)

    def _saved(self) -> bool:
        """Whether this update's checkpoint is there; asked once for all ranks, since the first one writes it."""
        return on_first_rank((self.checkpoints / checkpoint.name_of(self.progress.step)).is_dir)

    def _best_steps(self) -> list[int]:
        """Steps of the best checkpoints by the validation metric, best first; earlier ones win ties."""
        training = self.config.training
        return best_steps(self.validations, training.validation.metric, training.checkpoint.keep_best)

    def _out_of_patience(self) -> bool:
        patience = self.config.training.validation.patience
        if patience is None:
            return False
        best = best_steps(self.validations, self.config.training.validation.metric, 1)
        return bool(best) and sum(event["step"] > best[0] for event in self.validations) >= patience

    def leave_if_asked(self) -> None:
        """Leaves from between two batches of a validation, before which everything was saved."""
        if self.stop.signal_number:
            raise self._stopped()

    def _leave(self) -> None:
        """Saves the last finished update and ends the process with the signal's exit code."""
        if self.progress.step and not self._saved():
            self._save()
        raise self._stopped()

    def _stopped(self) -> Stopped:
        step = self.progress.step
        message = f"interrupted, saved at update {step}" if step else "interrupted before the first update"
        return Stopped(self.stop.signal_number or signal.SIGTERM, message)

    def _end(self, metrics: log.Metrics) -> None:
        """The last checkpoint and validation, then model/."""
        if self.progress.step == 0:
            skipped = self.progress.skipped
            raise RunError(f"no update was made: {skipped} were skipped, their loss or gradient was not finite")
        if not self._saved():
            if self.progress.sums["updates"]:
                self._log(metrics)
            self._save()
        if not self._validated():
            self._validate(metrics)
        on_first_rank(self._make_model)
        self.leave_if_asked()

    def complete(self) -> bool:
        """Whether everything that follows the last update was done: its validation, and model/ as the config has it."""
        wanted = model_settings(self.config, list(map(checkpoint.step_of, self._chosen())))
        return self._validated() and read_model_settings(self.run / "model") == wanted

    def _chosen(self) -> list[Path]:
        """The checkpoints whose mean model/ is: the last ones, or the best one."""
        rules = self.config.training.checkpoint
        if rules.average:
            return checkpoint.planned(self.checkpoints)[-rules.average :]
        best = self._best_there()[:1] or [self.progress.step]
        return [self.checkpoints / checkpoint.name_of(best[0])]

    def _make_model(self) -> None:
        chosen = self._chosen()
        write_average(self.run, self.config, chosen, self.run / "model")
        steps = ", ".join(str(checkpoint.step_of(path)) for path in chosen)
        self.console.line(f"{self.run / 'model'}: {'mean of steps' if len(chosen) > 1 else 'step'} {steps}")


def write_average(run: Path, config: Config, folders: Sequence[Path], output: Path) -> None:
    """Writes a deployable folder from the mean of checkpoints of a run."""
    tensors = checkpoint.average(folders)
    steps = [checkpoint.step_of(path) for path in sorted(folders)]
    validations = log.validations(log.read_metrics(run))
    last = next((event for event in reversed(validations) if event["step"] in steps), None)
    card = model_card(config, sum(tensor.numel() for tensor in tensors.values()), steps, last)
    with new_folder(output) as partial:
        write_model(partial, tensors, model_settings(config, steps), run / "tokenizer", card)


def machine_record(process: Process) -> dict[str, Any]:
    """What the updates were made on: for the record, and to warn when it changes."""
    device = torch.cuda.get_device_name(process.device) if process.device.type == "cuda" else platform.machine()
    return {
        "transformer_mt": transformer_mt.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{process.device.type} {device}",
        "threads": torch.get_num_threads(),
        "ranks": process.ranks,
    }


def open_session(
    config: Config, run: Path, process: Process, console: log.Console, stop: StopFlag, resets: Sequence[str] = ()
) -> Session:
    """Builds the model and puts it where the newest checkpoint left it; notes what it took from there."""
    saved, warnings = checkpoint.newest(run / "checkpoints")
    for warning in warnings:
        console.warning(warning)
    notes: list[str] = []
    if saved:
        config, notes = keep_or_reset(config, saved.state["config"], resets)
    tokenizer, store = Tokenizer(run / "tokenizer"), Store(run / "ids", "train")
    torch.manual_seed(int(mix(config.training.seed)) >> 1)
    model = build(config.model, tokenizer.source_size, tokenizer.target_size)
    if saved:
        load_weights(model, saved.tensors, saved.folder)
    trainer = Trainer(model.to(process.device), store, config.training, START[config.model.start_symbol], process)
    progress = _progress(config, saved, process, resets)
    if saved:
        notes += _restore(trainer, saved, progress, process, resets)
    if config.training.max_epochs == progress.epoch + 1:  # moves on if this epoch is used up
        next(batches_from(store, config.training, progress), None)
    events = on_first_rank(lambda: log.validations(log.read_metrics(run)))
    events = [event for event in events if event["step"] <= progress.step]
    return Session(config, run, process, console, trainer, tokenizer, progress, stop, notes, events)


def _progress(config: Config, saved: Saved | None, process: Process, resets: Sequence[str]) -> Progress:
    progress = saved.progress if saved else Progress(sums=dict(NO_SUMS))
    if "data" in resets:
        progress.epoch = progress.batch = 0
    wanted = config.training.device_tokens
    if wanted != "auto":
        progress.device_tokens = wanted
    elif not progress.device_tokens:
        progress.device_tokens = DEVICE_TOKENS[process.device.type]
    return progress


def _restore(trainer: Trainer, saved: Saved, progress: Progress, process: Process, resets: Sequence[str]) -> list[str]:
    """Puts back the optimiser's state; sentences about what was resumed and what is different now."""
    if "optimizer" not in resets:
        trainer.load_moments(saved.moments)
    if progress.loss_scale and trainer.scaler.is_enabled():
        trainer.scaler.load_state_dict(progress.loss_scale)
    before, now = saved.state["machine"], machine_record(process)
    place = f"step {progress.step}, epoch {progress.epoch + 1}, batch {progress.batch}"
    return [f"resuming at {place} from {saved.folder}"] + [
        f"warning: {key} was {before[key]}, is {now[key]}: results will not be equal to the last bit"
        for key in ("threads", "device", "torch", "ranks")
        if before[key] != now[key]
    ]


def train(config: Config, run: Path, process: Process, console: log.Console, resets: Sequence[str] = ()) -> None:
    """Trains in a run folder whose corpus, tokenizer and ids are there, from wherever it stands, to the end."""
    with stop_flag() as stop:
        session = open_session(config, run, process, console, stop, resets)
        reason = session.finished()
        if reason and on_first_rank(session.complete):
            console.line(f"{run}: nothing to train: {reason}")
            session.leave_if_asked()
            return
        console.keep(run / "train.log")
        for note in session.notes:
            (console.warning if note.startswith("warning: ") else console.line)(note.removeprefix("warning: "))
        on_first_rank(lambda: write_config(session.config))
        on_first_rank(lambda: log.cut_metrics(run, session.progress.step))
        console.line(session.summary())
        session.train()
