"""What `field=value` may change: the same in every training, never that by which an experiment tells its own apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lab.engine.frame import Experiment, Need
from lab.runs.scales import Scale, find_scale
from selattn.data import Reading
from selattn.errors import SelattnError
from selattn.training.config import ARCHITECTURE, RunConfig, TextData
from selattn.training.folder import flat
from selattn.training.identity import deciding_settings
from selattn.training.overrides import override

_ELSEWHERE = {"seed": "--seeds", "data.source": "--source", "data.context": "the experiments"}
_READING = [f"data.{each.name}" for each in dataclasses.fields(Reading)]


def field_of(setting: str) -> str:
    """The field of `field=value`."""
    return setting.partition("=")[0]


def check_settings(settings: Sequence[str], experiments: Sequence[Experiment], scale: Scale) -> None:
    """Raise for settings that have an option of their own, or that an experiment chooses."""
    fields = [field_of(setting) for setting in settings]
    for name, instead in _ELSEWHERE.items():
        if name in fields:
            raise SelattnError(f"{name}=... is set by {instead}: leave it out of the settings")
    whole = dataclasses.replace(scale, tried=find_scale(scale.name).tried)  # rows are named after their positions
    chosen = {each.name: varied(each.needs(whole, (0,)).values()) for each in experiments} if fields else {}
    for name in fields:
        if those := [experiment for experiment, fields in chosen.items() if name in fields]:
            raise SelattnError(
                f"{name}=... cannot be set for {', '.join(those)}, whose own trainings differ in it: leave one out"
            )


def varied(needs: Iterable[Need]) -> set[str]:
    """The settings in which trainings of one seed differ, those that they begin with included, as dotted names.

    Only what decides weights and losses counts; how it is computed (`machine.*`) is not meant to.
    """
    found = [_settings(each) for need in needs for each in _chain(need)]
    names = {name for each in found for name in each if not name.startswith("machine.")}
    missing = object()
    return {name for name in names if any(each.get(name, missing) != found[0].get(name, missing) for each in found)}


def changed_beside(need: Need, others: Sequence[Need], settings: Sequence[str]) -> Need:
    """A training that comes up beside others, with what is set in these; where it differs from them it stays as it is.

    So a short continuation stays as short as its experiment says, whatever the steps of the others are set to.
    """
    after = None if need.after is None else changed_beside(need.after, others, settings)
    plain = Need(need.run, None if after is None else others[0])  # its architecture as it is without settings
    own = varied([*others, plain])
    return Need(override(need.run, [setting for setting in settings if field_of(setting) not in own]), after)


def with_reading(scale: Scale, settings: Sequence[str]) -> Scale:
    """The scale whose text is read as these settings say: what is measured on must be held out from the trainings."""
    reading = [setting for setting in settings if field_of(setting) in _READING]
    data = override(RunConfig(scale.name, scale.data), reading).data
    assert isinstance(data, TextData)
    return dataclasses.replace(scale, data=data)


def _chain(need: Need) -> Iterator[Need]:
    yield need
    if need.after is not None:
        yield from _chain(need.after)


def _settings(need: Need) -> dict[str, Any]:
    """Leaf by leaf; the architecture is that of the model it begins with."""
    found = dict(flat(deciding_settings(need.run.to_dict())))
    before = {} if need.after is None else _settings(need.after)
    return found | {f"model.{name}": before[f"model.{name}"] for name in ARCHITECTURE if f"model.{name}" in before}
