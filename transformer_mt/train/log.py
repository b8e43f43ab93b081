"""What training tells: lines on the console and in train.log, events in metrics.jsonl, TensorBoard if wanted."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from transformer_mt.atomic import naming, sync, write_text
from transformer_mt.distributed import Process

METRICS = "metrics.jsonl"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The events written so far; a last line that was cut by a crash is left out."""
    path = run / METRICS
    if not path.is_file():
        return []
    events = []
    for line in path.read_bytes().split(b"\n"):
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def cut_metrics(run: Path, step: int) -> None:
    """Takes back what was written after update `step`, which will be done again."""
    events = [event for event in read_metrics(run) if event["step"] <= step]
    write_text(run / METRICS, "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events))


class Console:
    """Lines for people on stderr, a progress bar when that is a terminal; silent on all ranks but the first."""

    def __init__(self, *, enabled: bool = True, quiet: bool = False) -> None:
        self.enabled, self.quiet = enabled, quiet
        self.terminal = enabled and not quiet and sys.stderr.isatty()
        self._log: TextIO | None = None
        self._bar: tqdm[Any] | None = None

    def keep(self, path: Path) -> None:
        """From now on writes the lines to a log file too."""
        self._log = path.open("a", encoding="utf-8") if self.enabled else None

    def __call__(self, text: str) -> None:
        """A line, or a warning if it begins as one."""
        if text.startswith("warning: "):
            self.warning(text.removeprefix("warning: "))
        else:
            self.line(text)

    def line(self, text: str) -> None:
        """One line to the console (unless quiet) and to the log file."""
        if not self.enabled:
            return
        if not self.quiet:
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()
        if self._log:
            with naming(self._log.name):
                self._log.write(text + "\n")
                self._log.flush()

    def warning(self, text: str) -> None:
        """A line that is printed even when quiet."""
        quiet, self.quiet = self.quiet, False
        self.line(f"warning: {text}")
        self.quiet = quiet

    def bar(self, done: int, total: int | None, unit: str) -> None:
        """Moves the progress bar, which is there on a terminal only."""
        if not self.terminal:
            return
        if self._bar is None:
            self._bar = tqdm(total=total, initial=done, unit=unit, file=sys.stderr, dynamic_ncols=True, leave=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Ends the bar and the log file."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._log:
            with naming(self._log.name):
                self._log.close()
            self._log = None


@contextmanager
def progress_bar(total: int, process: Process) -> Iterator[Callable[[int], object]]:
    """A bar of lines on a terminal; gives the function to tell of lines done. Ranks share them about evenly."""
    disable = not process.first or not sys.stderr.isatty()
    with tqdm(total=-(-total // process.ranks), unit="line", disable=disable, leave=False, file=sys.stderr) as bar:
        yield bar.update


class Metrics:
    """metrics.jsonl, one JSON object a line, and TensorBoard's files beside it."""

    def __init__(self, run: Path, *, enabled: bool, tensorboard: bool, step: int = 0) -> None:
        """`step`: the update that training goes on from; what TensorBoard has of later ones is hidden there."""
        self._run = run
        self._file = (run / METRICS).open("a", encoding="utf-8") if enabled else None
        self._board = _tensorboard(run / "tensorboard", step) if enabled and tensorboard else None

    def write(self, event: dict[str, Any]) -> None:
        """Adds an event: `event` (train or validation), `step`, and its numbers."""
        if self._file:
            with naming(self._file.name):
                self._file.write(json.dumps(_plain(event), ensure_ascii=False, allow_nan=False) + "\n")
                self._file.flush()
        if self._board:
            for key, value in event.items():
                if isinstance(value, (int, float)) and key != "step":
                    self._board.add_scalar(f"{event['event']}/{key}", value, event["step"])

    def sync(self) -> None:
        """Forces what was written to the disk: a checkpoint must not outlive the events before it."""
        if self._file:
            os.fsync(self._file.fileno())
            sync(self._run)

    def close(self) -> None:
        """Writes out what is buffered."""
        if self._file:
            with naming(self._file.name):
                self._file.close()
        if self._board:
            self._board.close()


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    """The event as JSON has it: no number there is infinite."""
    finite = {key: value for key, value in event.items() if not isinstance(value, float) or math.isfinite(value)}
    return dict.fromkeys(event) | finite


def check_tensorboard() -> list[str]:
    """What is wrong with `training.tensorboard: true` on this machine."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        return ["training.tensorboard: true needs the extra: pip install 'transformer-mt[tensorboard]'"]
    return []


def _tensorboard(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)


def train_event(step: int, sums: dict[str, float], rate: float, epoch: int) -> dict[str, Any]:
    """The numbers of a stretch of updates: per-token means in nats, speeds per second.

    sums: loss, nll, tokens (target, `</s>` included), padded (target tokens with padding), norm, updates, seconds.
    """
    tokens, updates = max(1.0, sums["tokens"]), max(1.0, sums["updates"])
    return {
        "event": "train",
        "step": step,
        "epoch": epoch,
        "loss": sums["loss"] / tokens,
        "nll": sums["nll"] / tokens,
        "ppl": perplexity(sums["nll"] / tokens),
        "learning_rate": rate,
        "gradient_norm": sums["norm"] / updates,
        "tokens_per_second": tokens / max(sums["seconds"], 1e-9),
        "padding": 1 - tokens / max(1.0, sums["padded"]),
        "skipped": int(sums["skipped"]),
    }


def perplexity(nll: float) -> float:
    """exp of a mean negative log-likelihood per token, infinite where that is too large for a float."""
    return math.exp(nll) if nll < 700 else math.inf


def train_line(event: dict[str, Any], max_steps: int | None, seconds_left: float | None) -> str:
    """A training event as a line for people."""
    total = f"/{max_steps}" if max_steps else ""
    left = "" if seconds_left is None else f"  {duration(seconds_left)} left"
    skipped = f"  skipped {event['skipped']}" if event["skipped"] else ""
    return (
        f"step {event['step']}{total}  epoch {event['epoch'] + 1}  loss {event['loss']:.4f}  nll {event['nll']:.4f}  "
        f"ppl {event['ppl']:.2f}  rate {event['learning_rate']:.3g}  norm {event['gradient_norm']:.3f}  "
        f"{event['tokens_per_second']:.0f} tokens/s  padding {event['padding']:.1%}{skipped}{left}"
    )


def validation_line(event: dict[str, Any], best: bool) -> str:
    """A validation event as a line for people."""
    scores = "".join(f"  {name} {event[name]:.2f}" for name in ("bleu", "chrf") if name in event)
    mark = "  (best so far)" if best else ""
    losses = f"loss {event['loss']:.4f}  nll {event['nll']:.4f}  ppl {event['ppl']:.3f}"
    return f"validation at step {event['step']}  {losses}{scores}{mark}"


def duration(seconds: float) -> str:
    """Seconds as `1:02:03` or `2:03`."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def validations(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The validation events among all."""
    return [event for event in events if event["event"] == "validation"]
