"""One sitting of training in a run folder: begin or resume, update, log, save, validate, and leave a `model/`."""

import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import transformer_mt
from transformer_mt.atomic import new_folder
from transformer_mt.config import Config
from transformer_mt.config_file import config_from_dict, differences
from transformer_mt.data.batching import mix
from transformer_mt.data.store import Store
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.decode.translator import Translator
from transformer_mt.distributed import Process, on_first_rank
from transformer_mt.errors import Stopped, UserError
from transformer_mt.evaluate.scores import is_better
from transformer_mt.model.card import model_card
from transformer_mt.model.folder import START, build, load_weights, weights, write_model
from transformer_mt.train import checkpoint, log
from transformer_mt.train.checkpoint import Progress, Saved
from transformer_mt.train.loop import DEVICE_TOKENS, NO_SUMS, Trainer, batches_from
from transformer_mt.train.signals import StopFlag, stop_flag
from transformer_mt.train.validation import validation_loss, validation_scores

# Keys whose value in the checkpoint stays unless their group is reset.
RESETS = {
    "optimizer": ("training.optimizer", "training.label_smoothing"),
    "schedule": ("training.learning_rate",),
    "data": ("training.batch_tokens", "training.seed"),
}


def keep_or_reset(config: Config, saved: dict[str, Any], resets: Sequence[str]) -> tuple[Config, list[str]]:
    """The configuration that holds when training goes on from a checkpoint, and a line for each differing key."""
    values, lines = config.model_dump(mode="json"), []
    for key, before, now in list(differences(saved["training"], values["training"], "training")):
        group = next((name for name, prefixes in RESETS.items() if key.startswith(prefixes)), None)
        if group is None:
            continue
        used = now if group in resets else before
        hint = "" if group in resets else f" (--reset {group} takes the config's)"
        lines.append(f"{key}: config {now}, checkpoint {before}, using {used}{hint}")
        section = values
        *path, last = key.split(".")
        for name in path:
            section = section[name]
        section[last] = used
    return config_from_dict(values, "the checkpoint's configuration"), lines


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

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.run / "checkpoints"

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
        metrics = log.Metrics(
            self.run, enabled=self.process.first, tensorboard=self.config.training.tensorboard
        )
        try:
            self._pending_validation(metrics)
            for batch in batches_from(self.trainer.store, self.config.training, self.progress):
                if self.finished():
                    break
                begin = time.perf_counter()
                step = self.progress.step
                stopped = self.trainer.update(batch, self.progress, self.stop)
                self.progress.seconds += time.perf_counter() - begin
                self.progress.sums["seconds"] += time.perf_counter() - begin
                if self.progress.step > step:
                    self._after_update(metrics)
                if stopped:
                    self._leave()
            self._end(metrics)
        finally:
            metrics.close()
            self.console.close()

    def _after_update(self, metrics: log.Metrics) -> None:
        """Logs, saves and validates when it is time to: first the log, then the checkpoint, then the validation."""
        training, step = self.config.training, self.progress.step
        if step % training.log_every_steps == 0 or step == training.max_steps:
            self._log(metrics)
        self.console.bar(step, training.max_steps, "update")
        validate = step % training.validation.every_steps == 0
        if validate or step % training.checkpoint.every_steps == 0:
            self._save()
        if validate:
            self._validate(metrics)

    def _log(self, metrics: log.Metrics) -> None:
        progress = self.progress
        event = log.train_event(progress.step, progress.sums, self.trainer.rate(progress.step), progress.epoch)
        progress.sums = dict(NO_SUMS)
        metrics.write(event)
        limit = self.config.training.max_steps
        left = (limit - progress.step) * progress.seconds / progress.step if limit else None
        self.console.line(log.train_line(event, limit, left))

    def _save(self) -> None:
        """Writes a checkpoint on the first rank, and removes what need not be kept."""
        record = {"config": self.config.model_dump(mode="json"), "machine": machine_record(self.process)}

        def save() -> None:
            model, moments = weights(self.trainer.model), self.trainer.moments()
            checkpoint.save(self.checkpoints, model, moments, self.progress, record)
            rules = self.config.training.checkpoint
            removed = checkpoint.prune(self.checkpoints, rules.keep_last, rules.keep_resumable, self._best_steps())
            for name in removed:
                self.console.line(f"removed checkpoint {name}")

        on_first_rank(save)

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
            sides = [read_lines(self.run / "corpus" / f"validation.{language}") for language in self._languages()]
            event |= validation_scores(
                translator, sides[0], sides[1], self.config, self.process, self._leave_if_asked
            )
        event["seconds"] = time.perf_counter() - begin
        metrics.write(event)
        if self.process.first:
            best = self._best_steps()[:1] == [event["step"]]
            self.console.line(log.validation_line(event, best))
            if best:
                checkpoint.mark_best(self.checkpoints, event["step"])

    def _languages(self) -> tuple[str, str]:
        return self.config.languages.source, self.config.languages.target

    def _pending_validation(self, metrics: log.Metrics) -> None:
        """Does the validation that was due when the last session ended between saving and measuring."""
        step, every = self.progress.step, self.config.training.validation.every_steps
        done = any(event["step"] == step for event in self._validations())
        if step and step % every == 0 and not done:
            self._validate(metrics)

    def _validations(self) -> list[dict[str, Any]]:
        """Validations so far. All ranks read the same file, which the first one writes."""
        return on_first_rank(lambda: log.validations(log.read_metrics(self.run)))

    def _best_steps(self) -> list[int]:
        """Steps of the best checkpoints by the validation metric, best first; earlier ones win ties."""
        return best_steps(
            log.validations(log.read_metrics(self.run)),
            self.config.training.validation.metric,
            self.config.training.checkpoint.keep_best,
        )

    def _out_of_patience(self) -> bool:
        patience = self.config.training.validation.patience
        if patience is None:
            return False
        events = self._validations()
        best = best_steps(events, self.config.training.validation.metric, 1)
        return bool(best) and sum(event["step"] > best[0] for event in events) >= patience

    def _leave_if_asked(self) -> None:
        if self.stop.signal_number and self.process.ranks == 1:
            self._leave()

    def _leave(self) -> None:
        """Saves the last finished update and ends the process with the signal's exit code."""
        if self.progress.step and not (self.checkpoints / checkpoint.name_of(self.progress.step)).is_dir():
            self._save()
        raise Stopped(self.stop.signal_number or 15, f"interrupted, saved at update {self.progress.step}")

    def _end(self, metrics: log.Metrics) -> None:
        """The last checkpoint and validation, then model/."""
        if self.progress.step == 0:
            raise UserError("no update was made: training.max_epochs is reached before the first batch")
        if not (self.checkpoints / checkpoint.name_of(self.progress.step)).is_dir():
            if self.progress.sums["updates"]:
                self._log(metrics)
            self._save()
        if not any(event["step"] == self.progress.step for event in self._validations()):
            self._validate(metrics)
        on_first_rank(self.make_model)

    def make_model(self) -> None:
        """Writes model/: the mean of the last checkpoints, or the best one."""
        rules = self.config.training.checkpoint
        if rules.average:
            chosen = checkpoint.checkpoints(self.checkpoints)[-rules.average :]
        else:
            best = self._best_steps()[:1] or [self.progress.step]
            chosen = [self.checkpoints / checkpoint.name_of(best[0])]
        write_average(self.run, self.config, chosen, self.run / "model")
        steps = ", ".join(str(checkpoint.step_of(path)) for path in chosen)
        self.console.line(f"{self.run / 'model'}: {'mean of steps' if len(chosen) > 1 else 'step'} {steps}")


def read_lines(path: Path) -> list[str]:
    """Lines of a UTF-8 file that we wrote: ended by LF and nothing else."""
    text = path.read_bytes().decode()
    return text.removesuffix("\n").split("\n") if text else []


def best_steps(events: Sequence[dict[str, Any]], metric: str, count: int) -> list[int]:
    """Steps of the `count` best validations by a metric, best first; of equal ones the earlier."""
    sign = -1 if is_better(metric, 1.0, 0.0) else 1
    measured = [event for event in events if metric in event and not math.isnan(event[metric])]
    return [event["step"] for event in sorted(measured, key=lambda event: sign * event[metric])][:count]


def write_average(run: Path, config: Config, folders: Sequence[Path], output: Path) -> None:
    """Writes a deployable folder from the mean of checkpoints of a run."""
    tensors = checkpoint.average(folders)
    steps = [checkpoint.step_of(path) for path in sorted(folders)]
    validations = log.validations(log.read_metrics(run))
    last = next((event for event in reversed(validations) if event["step"] in steps), None)
    card = model_card(config, sum(tensor.numel() for tensor in tensors.values()), steps, last)
    with new_folder(output) as partial:
        write_model(partial, tensors, config, run / "tokenizer", card)


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
    """Builds the model and puts it where the newest checkpoint left it; says what it took from there."""
    saved, warnings = checkpoint.newest(run / "checkpoints")
    for warning in warnings:
        console.warning(warning)
    if saved:
        config, lines = keep_or_reset(config, saved.state["config"], resets)
        for line in lines:
            console.line(line)
    tokenizer, store = Tokenizer(run / "tokenizer"), Store(run / "ids", "train")
    torch.manual_seed(int(mix(config.training.seed)) >> 1)
    model = build(config.model, tokenizer.source_size, tokenizer.target_size)
    if saved:
        load_weights(model, saved.tensors, saved.folder)
    trainer = Trainer(
        model.to(process.device), store, config.training, START[config.model.start_symbol], process
    )
    progress = _progress(config, saved, process, resets)
    if saved:
        _restore(trainer, saved, progress, process, console, resets)
    return Session(config, run, process, console, trainer, tokenizer, progress, stop)


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


def _restore(
    trainer: Trainer, saved: Saved, progress: Progress, process: Process, console: log.Console, resets: Sequence[str]
) -> None:
    if "optimizer" not in resets:
        trainer.load_moments(saved.moments)
    if progress.loss_scale and trainer.scaler.is_enabled():
        trainer.scaler.load_state_dict(progress.loss_scale)
    before, now = saved.state["machine"], machine_record(process)
    for key in ("threads", "device", "torch", "ranks"):
        if before[key] != now[key]:
            console.warning(f"{key} was {before[key]}, is {now[key]}: results will not be equal to the last bit")
    console.line(f"resuming at step {progress.step}, epoch {progress.epoch + 1}, batch {progress.batch} from {saved.folder}")


def train(config: Config, run: Path, process: Process, console: log.Console, resets: Sequence[str] = ()) -> None:
    """Trains in a run folder whose corpus, tokenizer and ids are there, from wherever it stands, to the end."""
    with stop_flag() as stop:
        session = open_session(config, run, process, console, stop, resets)
        reason = session.finished()
        if reason and (run / "model").is_dir():
            console.line(f"{run}: nothing to train: {reason}")
            return
        on_first_rank(lambda: log.cut_metrics(run, session.progress.step))
        count = sum(parameter.numel() for parameter in session.trainer.model.parameters())
        console.line(
            f"{count / 1e6:.2f} million parameters, {len(session.trainer.store)} pairs, {process.ranks} x {process.device}, "
            f"{str(session.trainer.precision).removeprefix('torch.')}, {torch.get_num_threads()} threads, "
            f"highest rate {session.trainer.rate(max(1, config.training.learning_rate.warmup_steps)):.3g} "
            f"at step {max(1, config.training.learning_rate.warmup_steps)}"
        )
        session.train()
