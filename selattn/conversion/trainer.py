"""The trainer of a conversion: the share of the teacher in the loss, and what is frozen at first.

From the next token's loss to one that is shared with KL(teacher || student), a few tokens at a time.

With p the teacher's probabilities, z the student's logits and y the next token,

    KL - CE = sum of p log p - sum of p z + z_y,      d(KL - CE) / dz = [y] - p

for each token: the student's own log-sum-exp is in both and falls out. So a share w of KL is the student's loss plus
w (KL - CE), and neither pass needs more of the teacher than the logits of one chunk. The backward pass makes them again
from the teacher's last states, which are as small as those of any layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from selattn.cache import Budgets
from selattn.conversion.config import ConversionRun
from selattn.conversion.student import is_form, make_student, merge_adapters, original_of, teacher_of
from selattn.data.tokenizer import Tokenizer
from selattn.evaluation.subjects import check_context
from selattn.models.causal_lm import next_tokens
from selattn.models.config import SelectiveConfig
from selattn.models.loading import Loaded
from selattn.training.config import RunConfig
from selattn.training.datasets import Data, prepare
from selattn.training.maker import Made
from selattn.training.memory import Sizes, check_memory
from selattn.training.model import Course, check_course
from selattn.training.trainer import SelectiveTrainer
from selattn.utils.progress import Progress

CHUNK = 2**22  # logits of the teacher that are there at a time

Head = Callable[[Tensor], Tensor]


def kl_less_ce(logits: Tensor, states: Tensor, head: Head, targets: Tensor, chunk: int | None = None) -> Tensor:
    """The sum over the tokens that have a target of KL(teacher || student) - CE(student); differentiable in `logits`.

    Args:
        logits: [B, N, V] of the student.
        states: [B, N, d] of the teacher, which `head` turns into its logits.
        head: of the teacher, [..., d] to [..., V].
        targets: [B, N] what each token is to predict, -100 for nothing.
        chunk: tokens at a time; None for as many as give `CHUNK` logits.
    """
    size = chunk or max(1, CHUNK // logits.shape[-1])
    found: Tensor = _KLLessCE.apply(logits.flatten(0, 1), states.flatten(0, 1), head, targets.flatten(), size)
    return found


class _KLLessCE(torch.autograd.Function):
    """Of logits [T, V] and states [T, d]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, states: Tensor, head: Head, targets: Tensor, size: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=logits.device)
        for at, wanted in _chunks(targets, size):
            log_p = _log_probabilities(head, states[at])
            z = logits[at].to(log_p.dtype)
            each = (log_p.exp() * (log_p - z)).sum(-1) + z.gather(-1, wanted.clamp(min=0)[:, None])[:, 0]
            total += torch.where(wanted >= 0, each, 0.0).sum(dtype=torch.float64)
        ctx.save_for_backward(states, targets)
        ctx.head, ctx.size, ctx.like = head, size, (logits.shape, logits.dtype)
        return total.to(torch.promote_types(logits.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, targets = ctx.saved_tensors
        shape, dtype = ctx.like
        found = torch.zeros(shape, dtype=dtype, device=states.device)
        for at, wanted in _chunks(targets, ctx.size):
            d = -_log_probabilities(ctx.head, states[at]).exp()
            d.scatter_add_(-1, wanted.clamp(min=0)[:, None], torch.ones_like(d[:, :1]))
            found[at] = (d * grads[0]).masked_fill_((wanted < 0)[:, None], 0.0)
        return found, None, None, None, None


def _chunks(targets: Tensor, size: int) -> Iterator[tuple[slice, Tensor]]:
    """Chunks of the tokens in which something is to be predicted."""
    for start in range(0, len(targets), size):
        at = slice(start, start + size)
        if bool((targets[at] >= 0).any()):
            yield at, targets[at]


@torch.no_grad()
def _log_probabilities(head: Head, states: Tensor) -> Tensor:
    logits = head(states)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


class ConversionTrainer(SelectiveTrainer):
    """A `SelectiveTrainer` with a frozen teacher, of which no checkpoint knows: it is read again."""

    run: ConversionRun

    def __init__(
        self,
        run: ConversionRun,
        model: Any,
        data: Data,
        args: TrainingArguments,
        progress: Progress,
        course: Course,
        start: int = 0,
        *,
        teacher: Any,
    ) -> None:
        super().__init__(
            run, model, data, args, progress, course, start, None if teacher is None else run.conversion.kl
        )
        self.teacher: Any = None if teacher is None else teacher.to(self.args.device)

    def add_loss(self, loss: Tensor, outputs: Any, inputs: dict[str, Any], items: Tensor | int | None) -> Tensor:
        """Of the next token's loss, the teacher takes its share: see above."""
        if self.teacher is None:
            return loss
        targets = next_tokens(inputs["labels"])
        count = (targets >= 0).sum().clamp(min=1) if items is None else items
        told = {name: inputs.get(name) for name in ("attention_mask", "position_ids")}
        with torch.no_grad(), self.accelerator.autocast():
            states = self.teacher.states(inputs["input_ids"], **told)
        apart = kl_less_ce(outputs.logits, states, self._head, targets) / count
        outputs["kl_loss"] = outputs["lm_loss"] + apart.detach()
        # The Trainer multiplies a loss that it has divided by the labels of all processes by their number.
        processes = self.args.world_size if items is not None and self.args.average_tokens_across_devices else 1
        return loss + self.run.conversion.kl * processes * apart

    def _head(self, states: Tensor) -> Tensor:
        """The teacher's logits of some of its states, in the precision of the run."""
        with self.accelerator.autocast():
            found: Tensor = self.teacher.head(states)
        return found

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """In the first steps only the new form learns: the optimizer leaves alone what has no gradient."""
        loss = super().training_step(model, *args, **kwargs)
        if self.state.global_step < self.run.conversion.freeze_first:
            for name, parameter in model.named_parameters():
                if not is_form(name):
                    parameter.grad = None
        return loss

    def finish(self) -> None:
        """Adapters become part of the weights."""
        if self.run.conversion.lora:
            merge_adapters(self.accelerator.unwrap_model(self.model))


@dataclass(frozen=True)
class _Ends:
    """What a conversion ends with: full strength, and no budgets yet."""

    num_hidden_layers: int
    selects: bool
    selection_strength: float = 1.0
    budgets: Budgets | None = None


class Converter:
    """Makes a student of a pretrained model, and the trainer with its teacher."""

    def check(self, run: RunConfig, devices: int, device: torch.device) -> None:
        """By the model's own sizes; the teacher is there, too."""
        original = original_of(_checked(run).start.model or "")
        skeleton, about = original.skeleton, original.description
        weights = sum(weight.numel() for weight in skeleton.parameters())
        hidden = int(getattr(original.config, "hidden_size", 1))
        check_memory(run, devices, device, Sizes(weights, about.vocab_size, about.layers, hidden, frozen=weights))
        check_context(original.name, original, run.data.context)
        check_course(run, _ends(_checked(run), original))

    def settings(self, run: RunConfig) -> SelectiveConfig:
        """None of its own: the model is taken as it is."""
        return SelectiveConfig()

    def prepare(self, run: RunConfig, progress: bool) -> Data:
        """The run's text, read with the tokenizer of the model that is converted."""
        return prepare(run, original_of(_checked(run).start.model or "").tokenizer, progress)

    def make(self, run: RunConfig, tokenizer: Tokenizer | None) -> Made:
        """Student, course, and a trainer that knows the teacher."""
        wanted = _checked(run)
        original = original_of(wanted.start.model or "")
        student = make_student(wanted)
        teacher = teacher_of(wanted, original)
        return Made(
            student, Course(wanted, _ends(wanted, original)), functools.partial(ConversionTrainer, teacher=teacher)
        )


def _ends(run: ConversionRun, original: Loaded) -> _Ends:
    return _Ends(original.description.layers, run.conversion.selects)


def _checked(run: RunConfig) -> ConversionRun:
    assert isinstance(run, ConversionRun)
    return run
