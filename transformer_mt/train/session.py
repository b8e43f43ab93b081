"""One sitting of training in a run folder: update, log, save, validate, and leave a `model/`."""

import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import transformer_mt
from transformer_mt.config import Config
from transformer_mt.data.files import text_lines
from transformer_mt.data.store import Store
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.decode.translator import Translator
from transformer_mt.distributed import Process, fail_together, is_out_of_memory, largest, on_first_rank
from transformer_mt.errors import OutOfMemory, RunError, Stopped
from transformer_mt.model.folder import model_settings, read_model_settings, weights
from transformer_mt.train import checkpoint, log, memory
from transformer_mt.train.averaging import best_checkpoints, chosen, write_average
from transformer_mt.train.checkpoint import Progress, best_steps
from transformer_mt.train.loop import NO_SUMS, Trainer, batches_from
from transformer_mt.train.signals import StopFlag
from transformer_mt.train.validation import validation_loss, validation_scores

UPDATES = 2
"""The way in which updates are made: 1 cut batches in another order and drew other numbers for dropout."""


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
        "updates": UPDATES,
    }


@dataclass
class Session:
    """A run folder with its model, ready to be trained; made by `opening.open_session`."""

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
    metrics: log.Metrics = field(init=False)

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.run / "checkpoints"

    def record(self) -> str:
        """The versions and the seed that results depend on."""
        machine = machine_record(self.process)
        versions = f"transformer-mt {machine['transformer_mt']}, torch {machine['torch']}, Python {machine['python']}"
        return f"{versions}, {machine['device']}, seed {self.config.training.seed}"

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
        if self.progress.last_step is not None and self.progress.step >= self.progress.last_step:
            return f"{self.progress.step} updates made, which training.max_minutes {training.max_minutes:g} came to"
        if training.max_epochs is not None and self.progress.epoch >= training.max_epochs:
            return f"{self.progress.epoch} epochs done, training.max_epochs is {training.max_epochs}"
        if self._out_of_patience():
            return f"no better {training.validation.metric} for {training.validation.patience} validations"
        return None

    def check_disk(self) -> None:
        """Raises RunError unless the disk has room for all that will be kept, before any time is spent."""
        training, last = self.config.training, self._last_step()
        every = min(training.checkpoint.every_steps, training.validation.every_steps)
        model = sum(tensor.nbytes for tensor in weights(self.trainer.model).values())
        moments = sum(tensor.nbytes for tensor in self.trainer.optimizer.state().values())
        count = -(-last // every) if last else sys.maxsize
        checkpoint.check_disk(self.run, checkpoint.bytes_needed(model, moments, training.checkpoint, count))

    def train(self, *, save_first: bool = False) -> None:
        """Updates until there is nothing more to train or a signal comes.

        `save_first` writes the checkpoint again that training goes on from: what was reset is so from here on, even if
        this sitting dies.
        """
        board, step = self.config.training.tensorboard, self.progress.step
        self.metrics = log.Metrics(self.run, enabled=self.process.first, tensorboard=board, step=step)
        try:
            if save_first and step:
                self._save(planned=on_first_rank(lambda: checkpoint.is_planned(self._here())))
            self._catch_up()
            self._reckon_last_step()
            for batch in batches_from(self.trainer.store, self.config.training, self.progress):
                if self.finished():
                    break
                begin = time.perf_counter()
                step = self.progress.step
                stopped = self.trainer.update(batch, self.progress, self.stop)
                self.progress.seconds += time.perf_counter() - begin
                self.progress.sums["seconds"] += time.perf_counter() - begin
                if self.progress.step > step:
                    self._after_update(leaving=stopped)
                if stopped:
                    self._leave()
            self._end()
        except OutOfMemory as failure:
            raise self._out_of_memory(failure) from None
        finally:
            self.metrics.close()
            self.console.close()

    def _out_of_memory(self, failure: OutOfMemory) -> RunError:
        """What to say, and for the next sitting to know, of a pass that found no memory."""
        tokens = self.progress.device_tokens
        if tokens <= self.config.training.max_tokens:
            remedy = "lower training.max_tokens, training.batch_tokens or the size of the model"
            return RunError(f"{failure} (training.device_tokens {tokens} is a pair or two a pass already: {remedy})")
        memory.note_failure(self.run, tokens, self.process.rank, machine_record(self.process))
        then = f"started again, the run goes on with {tokens // 2}"
        return RunError(f"{failure} (training.device_tokens {tokens} is too much here; {then})")

    def _after_update(self, *, leaving: bool) -> None:
        """Logs, saves and validates, in this order, when it is time to; a validation is left to the next session."""
        training, step = self.config.training, self.progress.step
        reckoned = step & (step - 1) == 0 and self._reckon_last_step()
        if step % training.log_every_steps == 0 or step == self._last_step():
            self._log()
        self.console.bar(step, self._last_step(), "update")
        validate = step % training.validation.every_steps == 0
        planned = validate or step % training.checkpoint.every_steps == 0
        if planned or reckoned:
            self._save(planned=planned)
        if validate and not leaving:
            self._validate()

    def _last_step(self) -> int | None:
        """The update that max_steps or max_minutes ends with, whichever comes first; None while that is not known."""
        limits = [limit for limit in (self.config.training.max_steps, self.progress.last_step) if limit]
        return min(limits, default=None)

    def _reckon_last_step(self) -> bool:
        """Turns max_minutes into a number of updates, once a twentieth of that time shows how long they take.

        Whether it did so now: then it has to be saved, so that it stays.
        """
        minutes, progress = self.config.training.max_minutes, self.progress
        if minutes is None or progress.minutes == minutes or not progress.step:
            return False
        seconds = on_first_rank(lambda: progress.seconds)
        if seconds * 20 < minutes * 60:
            return False
        progress.minutes = minutes
        progress.last_step = max(progress.step, int(progress.step * minutes * 60 / seconds))
        speed = f"{seconds / progress.step:.3g} seconds each"
        self.console.line(f"training.max_minutes {minutes:g} come to {progress.last_step} updates, {speed}")
        return True

    def _log(self) -> None:
        progress = self.progress
        event = log.train_event(progress.step, progress.sums, self.trainer.rate(progress.step), progress.epoch)
        progress.sums = dict(NO_SUMS)
        self.metrics.write(event)
        limit = self._last_step()
        left = (limit - progress.step) * progress.seconds / progress.step if limit else None
        self.console.line(log.train_line(event, limit, left))

    def _save(self, *, planned: bool = False) -> None:
        """Writes a checkpoint on the first rank, `planned` by the config or where a session ends; removes old ones."""
        config, machine = self.config.model_dump(mode="json"), machine_record(self.process)
        self.progress.loss_scale = self.trainer.scaler.state_dict()
        record = {"planned": planned, "config": config, "machine": machine}

        def save() -> None:
            self.metrics.sync()
            with self.trainer.optimizer.averaged():
                model = weights(self.trainer.model)
            checkpoint.save(self.checkpoints, model, self.trainer.optimizer.state(), self.progress, record)
            self._prune()

        on_first_rank(save)

    def _prune(self) -> None:
        rules = self.config.training.checkpoint
        for name in checkpoint.prune(self.checkpoints, rules.keep_last, rules.keep_resumable, self._best_steps()):
            self.console.line(f"removed checkpoint {name}")

    def _validate(self) -> None:
        """Measures on all ranks; the first one writes it down and marks the best checkpoint."""
        begin = time.perf_counter()
        event: dict[str, Any] = {"event": "validation", "step": self.progress.step}
        with self.trainer.optimizer.averaged():
            event |= self._measured()
        event["seconds"] = time.perf_counter() - begin
        event = on_first_rank(lambda: event)
        self.metrics.write(event)
        self.validations.append(event)
        self.console.line(log.validation_line(event, self._best_steps()[:1] == [event["step"]]))
        self._mark_best()

    def _measured(self) -> dict[str, Any]:
        """Loss and scores; everything was saved before, so a signal to any rank ends it between two batches."""
        trainer, tokens = self.trainer, self.progress.device_tokens
        store = Store(self.run / "ids", "validation")
        values: dict[str, Any] = {}
        try:
            values |= validation_loss(trainer.loss, store, tokens, trainer.start, self.process, self.stop.asked)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(f"out of memory in a validation: {error}") from None
        self.leave_if_asked()
        if self.config.training.validation.translate:
            translator = Translator(trainer.model, self.tokenizer, self.config.decoding, trainer.start)
            texts = (self.run / "corpus" / f"validation.{language}" for language in self._languages())
            sources, references = (list(text_lines(path)) for path in texts)
            translations = translator.translate(sources, self.process, interrupted=self.stop.asked)
            self.leave_if_asked()
            values |= validation_scores([line.text for line in translations], references, self.config)
        return values

    def _mark_best(self) -> None:
        """Points `best` to the best checkpoint, and removes the one that was it before."""
        if self.process.first:
            if best := self._best()[: self.config.training.checkpoint.keep_best]:
                checkpoint.mark_best(self.checkpoints, checkpoint.step_of(best[0]))
            self._prune()

    def _languages(self) -> tuple[str, str]:
        return self.config.languages.source, self.config.languages.target

    def _catch_up(self) -> None:
        """Does what was due when the last session ended between saving and measuring, or marking the best."""
        step, every = self.progress.step, self.config.training.validation.every_steps
        if step and step % every == 0 and not self._validated():
            self._validate()
        self._mark_best()

    def _validated(self) -> bool:
        return any(event["step"] == self.progress.step for event in self.validations)

    def _here(self) -> Path:
        """The checkpoint of this update, whether it is there or not."""
        return self.checkpoints / checkpoint.name_of(self.progress.step)

    def _saved(self) -> bool:
        """Whether this update's checkpoint is there; asked once for all ranks, since the first one writes it."""
        return on_first_rank(self._here().is_dir)

    def _logged(self) -> bool:
        """Whether the updates up to this one are in the metrics."""
        events = log.read_metrics(self.run)
        return any(event["event"] == "train" and event["step"] == self.progress.step for event in events)

    def _best(self) -> list[Path]:
        """The validated checkpoints, best first; rules that changed on the way may have removed some."""
        return best_checkpoints(self.run, self.validations, self.config.training.validation.metric)

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
        """Ends the process, on all ranks, if a signal asked any of them to; everything has to be saved by then."""
        if number := largest(self.stop.signal_number):
            step = self.progress.step
            message = f"interrupted, saved at update {step}" if step else "interrupted before the first update"
            raise Stopped(number, message)

    def _leave(self) -> None:
        """Saves the last finished update and ends the process with the signal's exit code."""
        if self.progress.step and not self._saved():
            self._save()
        self.leave_if_asked()

    def _end(self) -> None:
        """The last checkpoint and validation, then model/."""
        if self.progress.step == 0:
            skipped = self.progress.skipped
            fail_together(
                RunError(f"no update was made: {skipped} were skipped, their loss or gradient was not finite")
            )
        if self.progress.sums["updates"] and not on_first_rank(self._logged):
            self._log()
        if not self._saved():
            self._save()
        if not self._validated():
            self._validate()
        if self.config.training.compile:
            self.console.line(self.trainer.loss.compiled())
        on_first_rank(self._make_model)
        self.leave_if_asked()

    def complete(self) -> bool:
        """Whether everything that follows the last update was done: its validation, and model/ as the config has it."""
        wanted = model_settings(self.config, list(map(checkpoint.step_of, self._chosen())))
        return self._validated() and read_model_settings(self.run / "model") == wanted

    def _chosen(self) -> list[Path]:
        """The checkpoints whose mean model/ is."""
        return chosen(self.run, self.config, self.validations) or [self._here()]

    def _make_model(self) -> None:
        chosen = self._chosen()
        write_average(self.run, self.config, chosen, self.run / "model")
        steps = ", ".join(str(checkpoint.step_of(path)) for path in chosen)
        self.console.line(f"{self.run / 'model'}: {'mean of steps' if len(chosen) > 1 else 'step'} {steps}")
