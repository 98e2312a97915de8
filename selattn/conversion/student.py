"""The model that learns, and the one that it learns from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from selattn.conversion.config import ConversionRun
from selattn.errors import SelattnError, require
from selattn.models import NewForm, SelectiveForCausalLM, make_selective, make_standard
from selattn.models.form import SelectingForm
from selattn.models.loading import Loaded, load
from selattn.models.weights import quiet

FORM = "selecting_form"  # what the new form is called in every layer


def original_of(name: str, dtype: torch.dtype | None = torch.float32) -> Loaded:
    """The model that is to be converted; one line if it is none, or selective already."""
    found = load(name, dtype=dtype)
    if found.description.selects:
        raise SelattnError(
            f"{found.name} is selective already: give the model that it came from, or prune it ('selattn prune')"
        )
    return found


def teacher_of(run: ConversionRun, original: Loaded) -> Any:
    """The frozen model, which has the vocabulary of the one that learns; None if it has no share in the loss."""
    if not run.conversion.kl:
        return None
    found = original if run.conversion.teacher is None else load(run.conversion.teacher)
    if found is not original:
        check_teacher(found, original)
    model: Any = found.model
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
    if wanted.selects:
        model = _ours(model, run) if isinstance(model, SelectiveForCausalLM) else _stock(model, run)
    if wanted.lora:
        add_adapters(model, wanted.lora, wanted.lora_alpha)
    return model


def _stock(model: Any, run: ConversionRun) -> Any:
    """A decoder of transformers with a form in every layer."""
    wanted = run.conversion
    return make_selective(
        make_standard(model),
        selection=NewForm(masks=wanted.masks, context=run.data.context),
        memory_epsilon=wanted.epsilon,
        memory_tau=wanted.tau,
    )


def _ours(model: SelectiveForCausalLM, run: ConversionRun) -> Any:
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
    found: Any = SelectiveForCausalLM(config)
    left = found.load_state_dict(model.state_dict(), strict=False)
    assert not left.unexpected_keys
    assert all(map(is_form, left.missing_keys))
    for module in found.modules():
        if isinstance(module, SelectingForm):
            nn.init.constant_(module.bias, 2.5 / run.data.context)
    return found.to(model.device)


def is_form(name: str) -> bool:
    """Whether a parameter of that name belongs to the new form."""
    return FORM in name.split(".")


def add_adapters(model: nn.Module, rank: int, alpha: float) -> None:
    """LoRA in every matrix but those of the new form and of the output; only adapters and new form are trained."""
    require("peft")
    from peft import LoraConfig, inject_adapter_in_model

    names = [name for name, module in model.named_modules() if _takes_adapter(model, name, module)]
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=names), model)  # type: ignore[arg-type]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_form(name) or "lora_" in name)


def _takes_adapter(model: Any, name: str, module: nn.Module) -> bool:
    matrix = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"  # GPT-2's
    return matrix and not is_form(name) and module is not model.get_output_embeddings()


def merge_adapters(model: nn.Module) -> None:
    """Put what the adapters have learned into the weights, and take them off."""
    for parent, name, layer in list(_adapted(model)):
        layer.merge()
        setattr(parent, name, layer.get_base_layer())
    model.requires_grad_(True)


def _adapted(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, BaseTunerLayer):
                yield parent, name, child
