"""Trainer that all recipes share: batches of like length, a callback at every log, checkpoints that hold.

A checkpoint is complete when its mark is written, last of all: a process killed while saving leaves a folder without
a mark, which is skipped on the next start. The order of the rows is a function of (seed, epoch) alone.
"""

from __future__ import annotations

import math
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from kbtrain.errors import UserError, at
from kbtrain.io.files import errors_of
from kbtrain.io.provenance import write_atomically
from kbtrain.kernels.memory import FreedMemory, give_back, keep_freed_memory
from kbtrain.models.weights import check_finite
from kbtrain.runtime.progress import progress_bar
from kbtrain.show import count_of


def epoch_order(lengths: Sequence[int], group: int, seed: int, epoch: int) -> list[int]:
    """Indices such that each ``group`` consecutive ones (all rows of one step) are of like length.

    Rows of equal length change places each epoch, and so do the groups. What fills no whole group comes last: rows
    next to each other in length, taken from a random place.
    """
    draw = random.Random(f"{seed}/{epoch}")
    order = list(range(len(lengths)))
    draw.shuffle(order)
    order.sort(key=lambda i: lengths[i])
    whole, rest = divmod(len(order), group)
    at = draw.randrange(whole + 1) * group
    last = order[at : at + rest]
    del order[at : at + rest]
    groups = [order[i * group : (i + 1) * group] for i in range(whole)]
    draw.shuffle(groups)
    return [i for g in groups for i in g] + last


@dataclass(frozen=True)
class LikeLengthSampler:
    """Sampler for torch's DataLoader; ``epoch`` is read each time it is iterated over."""

    lengths: Sequence[int]
    group: int
    seed: int
    epoch: Callable[[], int]
    fill: int = 1  # the rows of an epoch are filled up to a multiple of this by the index behind the last

    def __len__(self) -> int:
        return len(self.lengths) + -len(self.lengths) % self.fill

    def __iter__(self) -> Iterator[int]:
        yield from epoch_order(self.lengths, self.group, self.seed, self.epoch())
        yield from [len(self.lengths)] * (-len(self.lengths) % self.fill)


class ProgressBar(TrainerCallback):
    """Progress with the remaining time, the loss, and dev's last figures."""

    def __init__(self, name: str, silent: bool = False) -> None:
        self.bar: Any = progress_bar(desc=name, unit="steps", disable=silent)
        self.figures: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        bar, step, logs = self.bar, state.global_step, logs or {}
        bar.total = state.max_steps
        if bar.n == 0:
            bar.initial = bar.n = bar.last_print_n = step - 1  # by a run that was killed
        names = [name for name in logs if name == "loss" or name.startswith("eval_")]
        self.figures |= {name.replace("eval_", "dev "): logs[name] for name in names}
        bar.set_postfix({name: f"{value:.3f}" for name, value in self.figures.items()}, refresh=False)
        bar.update(step - bar.n)
        if "train_runtime" in logs:
            bar.close()


class _GiveBack(TrainerCallback):
    """Bounds what the process keeps of freed memory: rows of other lengths come with every step, and what dev's figures
    take fits into few of the gaps that steps leave."""

    def __init__(self) -> None:
        self.freed = FreedMemory(long_batches=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.freed.check()
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_evaluate:
            give_back()


class BaseTrainer(Trainer):
    """``rows`` are the training examples, each with its token ``ids``. It prints nothing.

    Raises :class:`UserError` under ZeRO-3.
    """

    rows: Sequence[Any]
    fills = False  # True: the data set has a row without a loss behind the last, which fills the last step of all ranks

    def __init__(self, **kwargs: Any) -> None:
        if not torch.cuda.is_available():
            keep_freed_memory()  # else a step on a CPU waits longer for zeroed pages than it computes
        # On Hopper, from torch 2.11 on, cuDNN's attention is the default, and its gradients are no numbers where a mask
        # hides all of a row and length % 128 == 64 (pytorch/pytorch#196678): seen with padded batches on an H200.
        torch.backends.cuda.enable_cudnn_sdp(False)
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True  # each loss is divided by what the whole step has, for any model
        check_zero(self.accelerator)
        if not torch.cuda.is_available():
            self.add_callback(_GiveBack())
        for printing in (PrinterCallback, ProgressCallback):
            self.remove_callback(printing)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        group = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        lengths = [len(row.ids) for row in self.rows]
        fill = self.args.train_batch_size * self.args.world_size if self.fills else 1
        return LikeLengthSampler(lengths, group, self.args.seed, lambda: int(self.state.epoch or 0), fill)

    def divisor_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A batch's part of what the losses of a step are divided by."""
        raise NotImplementedError

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """The batches of a step, and their divisors' sum over all ranks: 8 batches of 1 row learn what 1 of 8 does."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        total = torch.stack([self.divisor_of(batch) for batch in batches]).sum(0).to(device)
        return batches, self.accelerator.gather(total[None]).sum(0) if self.args.world_size > 1 else total

    def of_all_ranks(self, loss: torch.Tensor, n_items: object) -> torch.Tensor:
        """The ranks' gradients are averaged; where the divisor is of all ranks, the loss makes up for it."""
        return loss if n_items is None else loss * self.accelerator.num_processes

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Stop at a NaN or infinite loss."""
        if not math.isfinite(logs.get("loss", 0.0)):
            raise UserError(
                f"step {self.state.global_step}: the loss is {logs['loss']}; lower learning_rate, or set dtype: fp32"
            )
        super().log(logs, start_time)

    def log_dev_metrics(self, figures: Mapping[str, float], prefix: str) -> dict[str, float]:
        """Log dev figures under their names, and let the Trainer choose its checkpoint by them."""
        metrics = {f"{prefix}_{name}": value for name, value in figures.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _load_callback_state(self) -> None:
        """A state that training resumes from names the best checkpoint in the folder where it began."""
        super()._load_callback_state()
        if (best := self.state.best_global_step) and self.args.load_best_model_at_end:
            self.state.best_model_checkpoint = str(Path(str(self.args.output_dir)) / f"checkpoint-{best}")

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Gone on from the checkpoint of the last step, it would take one more (unless an epoch ends there too)."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' own; the optimizer's state goes at the end, twice the weights that no one needs then.

        Raises :class:`UserError` for a model whose weights are no numbers before its first step.
        """
        model: Any = self.model
        check_finite(model.named_parameters(), f"model '{model.name_or_path}'")
        output = super().train(*args, **kwargs)
        self._let_state_go()
        return output

    def plain_model(self) -> PreTrainedModel:
        """The trained model without accelerate's and the launcher's wrappers."""
        model = self.accelerator.unwrap_model(self.model_wrapped, keep_fp32_wrapper=False)
        return cast("PreTrainedModel", model)

    def _load_best_model(self) -> None:
        """The checkpoint is read whole beside the model: what training alone needs goes before."""
        self._let_state_go()
        if not Path(best := str(self.state.best_model_checkpoint)).is_dir():
            raise UserError(f"{best}: the best checkpoint is not there; delete {Path(best).parents[1]} to train again")
        super()._load_best_model()

    def _let_state_go(self) -> None:
        if self.optimizer is None or self.is_deepspeed_enabled:  # its engine keeps its own state, split or not
            return
        self.optimizer.state.clear()
        self.optimizer.zero_grad()
        if not torch.cuda.is_available():
            give_back()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Complete first, then the older ones go: whenever the process dies, one good checkpoint is there."""
        with errors_of(str(self.args.output_dir)):
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            run = Path(str(self.args.output_dir))
            mark_complete(run / f"checkpoint-{self.state.global_step}")
            best = self.state.best_model_checkpoint
            rotate(run, {run / Path(best).name} if best else set())
        self.accelerator.wait_for_everyone()


def check_zero(accelerator: Any) -> None:
    """Raise :class:`UserError` for ZeRO-3, whose split weights the first rank cannot save alone."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    if plugin is not None and int(plugin.zero_stage) == 3:
        raise UserError("launcher: ZeRO-3 shards parameters, which no recipe saves; use the launch file zero2_4gpu")


def names_optimizer(accelerator: Any) -> bool:
    """True if the launcher's DeepSpeed configuration names an optimizer: it has one learning rate for all weights."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    return plugin is not None and "optimizer" in plugin.deepspeed_config


MARK = "complete"
_NAME = re.compile(r"checkpoint-(\d+)")


def mark_complete(folder: Path) -> None:
    write_atomically(folder / MARK, "")


def all_checkpoints(run: Path) -> list[Path]:
    """The folders ``checkpoint-<step>``, oldest first, complete or not."""
    numbered = [(int(m.group(1)), path) for path in run.glob("checkpoint-*") if (m := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def last_complete(run: Path) -> tuple[Path | None, list[Path]]:
    """The newest complete checkpoint (None: start from the beginning) and the incomplete ones."""
    marked = [path for path in all_checkpoints(run) if (path / MARK).exists()]
    return (marked[-1] if marked else None), [path for path in all_checkpoints(run) if path not in marked]


def check_processes(checkpoint: Path, processes: int) -> None:
    """Raise :class:`UserError` for a checkpoint of another number of processes: each leaves the state of its random
    numbers in it. Its number of steps would be another share of the training, and whole epochs skipped in silence."""
    before = len([*checkpoint.glob("rng_state_*.pth")]) or 1
    if before != processes:
        raise UserError(
            f"{at(checkpoint)}: was written by {count_of(before, 'process', 'es')}, and now {processes} would "
            f"resume; start {before}, or delete {checkpoint.parent.parent} to train again"
        )


def rotate(run: Path, keep: set[Path]) -> None:
    """Delete all complete checkpoints but the newest and those to keep."""
    marked = [path for path in all_checkpoints(run) if (path / MARK).exists()]
    for path in marked[:-1]:
        if path not in keep:
            (path / MARK).unlink()  # first: a deletion cut short must not look complete
            shutil.rmtree(path)
