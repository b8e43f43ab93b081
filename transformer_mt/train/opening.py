"""Where a sitting of training begins: at the newest checkpoint, at another model's weights, or from nothing."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from transformer_mt.allocator import keep_large_buffers
from transformer_mt.config import Config
from transformer_mt.config.file import write_config
from transformer_mt.data.batching import mix
from transformer_mt.data.sampling import training_store
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.distributed import Process, on_first_rank
from transformer_mt.errors import RunError, UserError
from transformer_mt.model.folder import START, build, load_weights
from transformer_mt.train import checkpoint, log, memory
from transformer_mt.train.checkpoint import Progress, Saved, keep_or_reset
from transformer_mt.train.initial import take_weights
from transformer_mt.train.loop import NO_SUMS, Trainer, batches_from
from transformer_mt.train.session import Session, machine_record
from transformer_mt.train.signals import StopFlag, stop_flag


def train(config: Config, run: Path, process: Process, console: log.Console, resets: Sequence[str] = ()) -> None:
    """Trains in a run folder whose corpus, tokenizer and ids are there, from wherever it stands, to the end."""
    if process.device.type == "cpu":
        keep_large_buffers()
    with stop_flag(process) as stop, closing(console):
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
        console.line(session.record())
        console.line(session.summary())
        on_first_rank(session.check_disk)
        if not reason:
            trainer, progress = session.trainer, session.progress
            progress.device_tokens = memory.fitting_tokens(trainer, progress.device_tokens, stop)
            session.leave_if_asked()
        session.train(save_first=bool(resets))


def open_session(
    config: Config, run: Path, process: Process, console: log.Console, stop: StopFlag, resets: Sequence[str] = ()
) -> Session:
    """Builds the model and puts it where the newest checkpoint left it; notes what it took from where."""
    saved = _newest(run / "checkpoints", console)
    notes: list[str] = []
    if saved:
        config, notes = keep_or_reset(config, saved.state["config"], resets)
    training = config.training
    tokenizer = Tokenizer(run / "tokenizer")
    store = training_store(config, run, tokenizer)
    torch.manual_seed(int(mix(training.seed)) >> 1)
    model = build(config.model, tokenizer.source_size, tokenizer.target_size)
    if saved:
        load_weights(model, saved.tensors, saved.folder)
    elif training.initial_model:
        notes += take_weights(model, tokenizer, training.initial_model)
    start = START[config.model.start_symbol]
    trainer = Trainer(model.to(process.device), store, training, start, process, console.warning)
    progress, more = _progress(config, run, saved, process, resets)
    notes += more
    if saved:
        notes += _restore(trainer, saved, progress, resets)
    if training.max_epochs == progress.epoch + 1:  # moves on if this epoch is used up
        next(batches_from(store, training, progress), None)
    events = on_first_rank(lambda: log.validations(log.read_metrics(run)))
    events = [event for event in events if event["step"] <= progress.step]
    return Session(config, run, process, console, trainer, tokenizer, progress, stop, notes, events)


def _newest(folder: Path, console: log.Console) -> Saved | None:
    """The checkpoint to go on from, which the first rank chooses for all."""
    chosen: list[Saved | None] = []

    def choose() -> Path | None:
        saved, warnings = checkpoint.newest(folder)
        for warning in warnings:
            console.warning(warning)
        if saved:
            checkpoint.set_aside(folder, saved.progress.step)
        chosen.append(saved)
        return saved.folder if saved else None

    found = on_first_rank(choose)
    if chosen or not found:
        return chosen[0] if chosen else None
    try:
        return checkpoint.read(found)
    except UserError as failure:  # here alone: a person would not hear of it from the first rank
        raise RunError(*failure.messages) from None


def _progress(
    config: Config, run: Path, saved: Saved | None, process: Process, resets: Sequence[str]
) -> tuple[Progress, list[str]]:
    """Where training stands, and what is new about it."""
    progress = saved.progress if saved else Progress(sums=dict(NO_SUMS))
    if "data" in resets:
        progress.epoch = progress.batch = 0
    if progress.minutes != (config.training.max_minutes or 0.0):  # to be reckoned anew
        progress.minutes, progress.last_step = 0.0, None
    wanted, machine = memory.first_choice(config.training, process, progress.device_tokens), machine_record(process)
    progress.device_tokens = on_first_rank(lambda: memory.after_failure(run, wanted, config.training, machine))
    halved = progress.device_tokens < wanted
    note = f"training.device_tokens is {progress.device_tokens} now, since there was no memory for {wanted}"
    return progress, [note] if halved else []


def _restore(trainer: Trainer, saved: Saved, progress: Progress, resets: Sequence[str]) -> list[str]:
    """Puts back the optimiser's state; sentences about what was resumed and what is different now."""
    trainer.optimizer.load(saved.moments, moments="optimizer" not in resets)
    if progress.loss_scale and trainer.scaler.is_enabled():
        trainer.scaler.load_state_dict(progress.loss_scale)
    before, now = (
        {**machine, "device_tokens": tokens, **{f"training.{key}": value for key, value in training.items()}}
        for machine, tokens, training in (
            (saved.state["machine"], saved.state["progress"]["device_tokens"], saved.state["config"]["training"]),
            (machine_record(trainer.process), progress.device_tokens, trainer.settings.model_dump(mode="json")),
        )
    )
    other = []
    if before.get("updates", 1) != now["updates"]:
        epoch = ", and some pairs of this epoch come twice or not at all" if progress.batch else ""
        other = [f"warning: the version that began this run made its updates another way: results will differ{epoch}"]
    place = f"step {progress.step}, epoch {progress.epoch + 1}, batch {progress.batch}"
    return [f"resuming at {place} from {saved.folder}", *other] + [
        f"warning: {key} was {before[key]}, is {now[key]}: results will not be equal to the last bit"
        for key in ("threads", "device", "torch", "ranks", "training.precision", "training.compile", "device_tokens")
        if before.get(key, now[key]) != now[key]
    ]
