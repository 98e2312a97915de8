"""What is evaluated: a model, with or without budgets, and a policy.

On the command line that is `MODEL`, `MODEL@BUDGETS` or `MODEL@BUDGETS:POLICY`: `zoo:memory@budgets.json`,
`runs/mine@64:h2o`. BUDGETS is a number for all layers, one for each (`8,48,8`), a budgets file, or the folder of a
search; `MODEL@none` leaves out the budgets that a model's config has.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils import logging

from selattn.data.rows import check_vocabulary
from selattn.data.tokenizer import MODEL_FILE, Tokenizer
from selattn.errors import SelattnError
from selattn.eviction import Budgets, import_policy
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.summary import read_config
from selattn.models.weights import load_whole
from selattn.models.zoo import find_model

BUDGETS = "budgets.json"  # of a search, in its folder
NONE = "none"  # the policy that drops nothing
TRAINING = "training_record.json"  # beside a trained model
LARGEST = 2**31 - 1  # more than any context has


@dataclass(frozen=True)
class Subject:
    """A model and how it is pruned.

    Attributes:
        name: as the user wrote it.
        folder: of the model.
        budgets: K_l; None for those of its config, which usually has none.
        policy: who leaves when a layer is full, a name or `package.module:Class`; None for the config's.
    """

    name: str
    folder: Path
    budgets: Budgets | None = None
    policy: str | None = None

    @classmethod
    def parse(cls, text: str, default: str | None = None) -> Subject:
        """From the command line; `default` is the policy of a model that has budgets and names none."""
        name, at, how = text.rpartition("@")
        if not at:
            folder = find_model(text)
            if default is not None and read_config(folder).budgets is None:
                raise SelattnError(f"{text} has no budgets, so no policy is in force: write {text}@BUDGETS")
            return cls(text, folder, None, default)
        if not how:
            raise SelattnError(f"{text!r} has nothing behind its @: write MODEL@BUDGETS or MODEL@BUDGETS:POLICY")
        budgets, colon, policy = how.partition(":")
        if colon and not policy:
            raise SelattnError(f"{text!r} ends with a colon: write the policy behind it, or leave it out")
        policy = policy or ("" if how == NONE else default or "")
        if policy:
            import_policy(policy)  # which raises for an unknown one
        folder = find_model(name)
        if how == NONE:
            return cls(text, folder, None, NONE)
        config = read_config(folder)
        found = read_budgets(budgets)
        check_budgets(found, config, policy or None)
        return cls(text, folder, found, policy or None)

    def config(self) -> SelectiveConfig:
        """The config of the model, with its budgets in it."""
        return self._pruned(read_config(self.folder))

    def load(self) -> SelectiveForCausalLM:
        """The model in evaluation mode, with its budgets in its config, so that every forward has them in force."""
        model = load_model(self.folder)
        self._pruned(model.config)
        if self.policy is not None:
            model.model.cache_policy = import_policy(self.policy)
        return model

    def policy_name(self) -> str:
        """Who leaves, for tables and records."""
        return self.policy or read_config(self.folder).cache_policy

    def _pruned(self, config: SelectiveConfig) -> SelectiveConfig:
        if self.budgets is not None:
            config.cache_budgets = self.budgets.to_json()
        if self.policy is not None and ":" not in self.policy:  # a config has names only
            config.cache_policy = self.policy
        return config


def read_budgets(text: str) -> Budgets:
    """A number for all layers, a number for each, a budgets file, or the folder of a search."""
    if re.fullmatch(r"\[?[\d\s,-]+\]?", text):
        try:
            numbers = [int(number) for number in text.removeprefix("[").removesuffix("]").split(",")]
        except ValueError:
            raise SelattnError(f"budgets are a number, or one for each layer such as 8,48,8, not {text!r}") from None
        budgets = Budgets(tuple(numbers) if len(numbers) > 1 else numbers[0])
    else:
        path = Path(text).expanduser()
        if path.is_dir() and not (path / BUDGETS).is_file():
            raise SelattnError(f"{path} has no {BUDGETS}: it is not the folder of a search that has ended")
        budgets = Budgets.load(path / BUDGETS if path.is_dir() else path)
    if max(budgets) > LARGEST:
        raise SelattnError(f"a budget must be at most {LARGEST} tokens, not {max(budgets)}")
    return budgets


def check_budgets(budgets: Budgets, config: SelectiveConfig, policy: str | None) -> None:
    """Raise for budgets that a model cannot have, or that a policy would not heed."""
    budgets.for_layers(config.num_hidden_layers)
    policy = policy or config.cache_policy
    if not import_policy(policy).evicts:
        raise SelattnError(f"the policy {policy!r} drops nothing, whatever the budgets: leave them out, or change it")


def check_context(model: str, config: SelectiveConfig, context: int) -> None:
    """Raise for rows that are longer than a model can read."""
    most = config.max_position_embeddings
    if config.positions == "learned" and context > most:
        raise SelattnError(f"{model} has {most} learned positions: --context can be at most {most}, not {context}")


def load_model(folder: Path, device: str | None = None) -> SelectiveForCausalLM:
    """A model in evaluation mode, in fp32 whatever it is stored in, on a GPU if there is one."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = load_whole(folder, dtype=torch.float32)
    model.config.use_cache = False  # nothing is continued, and filling a cache takes time
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()  # type: ignore[arg-type]


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer that lies beside a model's weights."""
    if not (folder / MODEL_FILE).is_file():
        raise SelattnError(f"{folder} has no {MODEL_FILE}: text can only be read with the tokenizer of the model")
    tokenizer = Tokenizer(folder)
    check_vocabulary(tokenizer, read_config(folder))
    return tokenizer


def training_seed(folder: Path) -> int | None:
    """The seed that a model was trained with, as the record beside it says; None if there is none."""
    try:
        found = json.loads((folder / TRAINING).read_text())["seed"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, int) else None


def fingerprint(folder: Path) -> str:
    """Of a model's weights and config, which says what is computed with them: two with the same are the same."""
    return digest([*sorted(folder.glob("*.safetensors")), folder / "config.json"])


def digest(files: Iterable[Path]) -> str:
    """Of what files hold, in their order."""
    found = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).digest())
    return found.hexdigest()
