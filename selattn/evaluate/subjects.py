"""What is evaluated: a model, with or without budgets, and a policy.

On the command line that is `MODEL`, `MODEL@BUDGETS` or `MODEL@BUDGETS:POLICY`: `zoo:memory@budgets.json`,
`runs/mine@64:h2o`. BUDGETS is a number for all layers, a budgets file, or the folder of a search; `MODEL@none` leaves
out the budgets that a model's config has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils import logging

from selattn.cache import Budgets, make_policy
from selattn.data.rows import check_vocabulary
from selattn.data.tokenizer import MODEL_FILE, Tokenizer
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.summary import read_config
from selattn.models.weights import load_whole
from selattn.models.zoo import find_model

BUDGETS = "budgets.json"  # of a search, in its folder
NONE = "none"  # the policy that drops nothing


@dataclass(frozen=True)
class Subject:
    """A model and how it is pruned.

    Attributes:
        name: as the user wrote it.
        folder: of the model.
        budgets: K_l; None for those of its config, which usually has none.
        policy: who leaves when a layer is full; None for the config's.
    """

    name: str
    folder: Path
    budgets: Budgets | None = None
    policy: str | None = None

    @classmethod
    def parse(cls, text: str) -> Subject:
        """From the command line."""
        name, at, how = text.rpartition("@")
        if not at:
            return cls(text, find_model(text))
        budgets, colon, policy = how.rpartition(":")
        if not colon:
            budgets, policy = how, ""
        if policy:
            make_policy(policy)  # which raises for an unknown one
        folder = find_model(name)
        if how == NONE:
            return cls(text, folder, None, NONE)
        found = read_budgets(budgets)
        found.for_layers(read_config(folder).num_hidden_layers)
        return cls(text, folder, found, policy or None)

    def config(self) -> SelectiveConfig:
        """The config of the model, with its budgets in it."""
        return self._pruned(read_config(self.folder))

    def load(self) -> SelectiveForCausalLM:
        """The model in evaluation mode, with its budgets in its config, so that every forward has them in force."""
        model = load_model(self.folder)
        self._pruned(model.config)
        return model

    def _pruned(self, config: SelectiveConfig) -> SelectiveConfig:
        if self.budgets is not None:
            config.cache_budgets = self.budgets.to_json()
        if self.policy is not None:
            config.cache_policy = self.policy
        return config


def read_budgets(text: str) -> Budgets:
    """A number, a budgets file, or the folder of a search."""
    if text.isdecimal():
        return Budgets(int(text))
    path = Path(text).expanduser()
    return Budgets.load(path / BUDGETS if path.is_dir() else path)


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
