"""The model that learns, with a new selecting form, the frozen one that it learns from, and the trainer of both.

The loss is shared between the next token's and KL(teacher || student), which is computed a few tokens at a time.

With p the teacher's probabilities, z the student's logits and y the next token,

    KL - CE = sum of p log p - sum of p z + z_y,      d(KL - CE) / dz = [y] - p

for each token: the student's own log-sum-exp is in both and falls out. So a share w of KL is the student's loss plus
w (KL - CE), and neither pass needs more of the teacher than the logits of one chunk. The backward pass makes them again
from the teacher's last states, which are as small as those of any layer.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from selattn.conversion.config import ConversionRun
from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError, require
from selattn.evaluation.subjects import check_context
from selattn.models import NewForm, SelectiveForCausalLM, make_selective, make_standard
from selattn.models.config import SelectiveConfig
from selattn.models.form import SelectingForm
from selattn.models.formats import quiet
from selattn.models.loading import Loaded, load
from selattn.models.outputs import next_tokens
from selattn.training.config import RunConfig
from selattn.training.datasets import Data, prepare
from selattn.training.model import Course, Ends, Made, check_course, check_memory
from selattn.training.trainer import SelectiveTrainer
from selattn.utils.progress import Progress

FORM = "selecting_form"  # what the new form is called in every layer
CHUNK = 2**22  # logits of the teacher that are there at a time

Head = Callable[[Tensor], Tensor]


def original_of(name: str) -> Loaded:
    """The model that is to be converted; one line if there is no such model, or it is selective already."""
    original = load(name)
    if original.description.selects:
        raise SelattnError(
            f"{original.name} is selective already: give the model that it came from, or prune it ('selattn prune')"
        )
    return original


def teacher_of(run: ConversionRun, original: Loaded) -> Any:
    """The frozen model, which has the vocabulary of the one that learns; None if it has no share in the loss."""
    if not run.conversion.kl:
        return None
    model: Any = original.model
    if run.conversion.teacher is not None:
        teacher = load(run.conversion.teacher)
        check_teacher(teacher, original)
        model = teacher.model
    return model.eval().requires_grad_(False)


def check_teacher(teacher: Loaded, original: Loaded) -> None:
    """Raise unless both mean the same by a token."""
    theirs, ours = teacher.description.vocab_size, original.description.vocab_size
    same = teacher.tokenizer.fingerprint == original.tokenizer.fingerprint
    if theirs != ours or not same:
        raise SelattnError(
            f"the teacher {teacher.name} has another vocabulary ({theirs} tokens) than {original.name} ({ours}): "
            "what it says of the next token cannot be compared; give one with the same tokenizer"
        )
    if teacher.description.longest is not None and teacher.description.longest < original.description.context:
        raise SelattnError(f"the teacher {teacher.name} reads no more than {teacher.description.longest} tokens")


def make_student(run: ConversionRun) -> Any:
    """The model with a new form at its first weights, which the random numbers decide; without one for the control."""
    assert run.start.model is not None
    wanted = run.conversion
    with quiet():
        model: Any = original_of(run.start.model).model
    if wanted.selects and isinstance(model, SelectiveForCausalLM):
        model = _with_form(model, run)
    elif wanted.selects:
        form = NewForm(masks=wanted.masks, context=run.data.context)
        stock = make_standard(model)
        model = make_selective(stock, selection=form, memory_epsilon=wanted.epsilon, memory_tau=wanted.tau)
    if wanted.lora:
        add_adapters(model, wanted.lora, wanted.lora_alpha)
    return model


def _with_form(model: SelectiveForCausalLM, run: ConversionRun) -> Any:
    """Our decoder with a form in every layer that sees all tokens, or a window; sparse patterns stay as they are."""
    config, wanted = copy.deepcopy(model.config), run.conversion
    texts = [kind.text for kind in config.kinds]
    config.attention = [text.replace("standard", "selective").replace("local:", "selective:") for text in texts]
    masks = wanted.masks or config.num_key_value_heads or config.num_attention_heads
    config.selection_source, config.selection_head = "new", list(range(masks)) if masks > 1 else 0
    config.memory_epsilon, config.memory_tau = wanted.epsilon, wanted.tau
    config.check()
    if not config.selects:
        raise SelattnError(f"{run.start.model} has no layer that could select: {', '.join(texts)}")
    student: Any = SelectiveForCausalLM(config)
    left = student.load_state_dict(model.state_dict(), strict=False)
    assert not left.unexpected_keys
    assert all(map(is_form, left.missing_keys))
    for module in student.modules():
        if isinstance(module, SelectingForm):
            nn.init.constant_(module.bias, 2.5 / run.data.context)
    return student.to(model.device)


def is_form(name: str) -> bool:
    """Whether a parameter of that name belongs to the new form."""
    return FORM in name.split(".")


def add_adapters(model: nn.Module, rank: int, alpha: float) -> None:
    """LoRA in every matrix but those of the new form and of the output; only adapters and new form are trained."""
    require("peft")
    from peft import LoraConfig, inject_adapter_in_model

    output = model.get_output_embeddings()  # type: ignore[operator]
    names = [
        name
        for name, module in model.named_modules()
        if (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")  # GPT-2's
        and not is_form(name)
        and module is not output
    ]
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=names), model)  # type: ignore[arg-type]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_form(name) or "lora_" in name)


def merge_adapters(model: nn.Module) -> None:
    """Put what the adapters have learned into the weights, and take them off."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, BaseTunerLayer)
    ]
    for parent, name, layer in adapted:
        layer.merge()
        setattr(parent, name, layer.get_base_layer())
    model.requires_grad_(True)


# ---- the loss ----


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
    total: Tensor = _KLLessCE.apply(logits.flatten(0, 1), states.flatten(0, 1), head, targets.flatten(), size)
    return total


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
        gradient = torch.zeros(shape, dtype=dtype, device=states.device)
        for at, wanted in _chunks(targets, ctx.size):
            d = -_log_probabilities(ctx.head, states[at]).exp()
            d.scatter_add_(-1, wanted.clamp(min=0)[:, None], torch.ones_like(d[:, :1]))
            gradient[at] = (d * grads[0]).masked_fill_((wanted < 0)[:, None], 0.0)
        return gradient, None, None, None, None


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
    """A `SelectiveTrainer` with a frozen teacher, which is in no checkpoint: it is read again."""

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


class Converter:
    """Makes a student of a pretrained model, and the trainer with its teacher."""

    def check(self, run: RunConfig) -> None:
        """By the model's own sizes; the teacher is there, too."""
        original = _original(run)
        weights = sum(weight.numel() for weight in original.skeleton.parameters())
        check_memory(run, weights, original.description.vocab_size)
        check_context(original.name, original, run.data.context)
        check_course(run, _ends(run, original))

    def settings(self, run: RunConfig) -> SelectiveConfig:
        """None of its own: the model is taken as it is."""
        return SelectiveConfig()

    def prepare(self, run: RunConfig, progress: bool) -> Data:
        """The run's text, read with the tokenizer of the model that is converted."""
        return prepare(run, _original(run).tokenizer, progress)

    def make(self, run: RunConfig, tokenizer: Tokenizer | None) -> Made:
        """Student, course, and a trainer that knows the teacher."""
        assert isinstance(run, ConversionRun)
        original = _original(run)
        student = make_student(run)
        trainer = functools.partial(ConversionTrainer, teacher=teacher_of(run, original))
        return Made(student, Course(run, _ends(run, original)), trainer)


def _original(run: RunConfig) -> Loaded:
    return original_of(run.start.model or "")


def _ends(run: RunConfig, original: Loaded) -> Ends:
    """A conversion ends at full strength, without budgets."""
    assert isinstance(run, ConversionRun)
    return Ends(original.description.layers, run.conversion.selects)
