"""The runs of `selattn train` in tables: which there are, and the fields of one."""

from typing import TYPE_CHECKING, Any

from selattn.errors import SelattnError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from selattn.training import RunConfig


def list_runs(
    console: "Console", containing: str, groups: "Mapping[str, Mapping[str, Callable[[], RunConfig]]]"
) -> None:
    """The runs in tables, one for each group of `title: {name: run}`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if not any(containing in name for runs in groups.values() for name in runs):
        raise SelattnError(f"no run has {containing!r} in its name: --list alone lists all")
    for title, runs in groups.items():
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("run", no_wrap=True)
        table.add_column("attention")
        for name in ("size", "context", "batch", "steps"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, make in runs.items():
            if containing in name:
                config = make()
                model = config.model
                table.add_row(
                    name,
                    attention(model["attention"]) + (", memory loss" if model.get("memory_epsilon") else ""),
                    size(model),
                    f"{config.data.context:,}",
                    f"{config.batch.size:,}",
                    f"{config.schedule.steps:,}",
                )
        if table.row_count:
            console.print(table)


def size(model: "Mapping[str, Any]") -> str:
    """Layers and the size of a state; of T5 the layers of encoder and decoder."""
    if "num_decoder_layers" in model:
        return f"{model['num_layers']}+{model['num_decoder_layers']}×{model['d_model']}"
    return f"{model['num_hidden_layers']}×{model['hidden_size']}"


def attention(kinds: "str | Sequence[str]") -> str:
    """The kinds of the layers, repeated ones counted: `3 local:32, standard`."""
    from itertools import groupby

    groups = [(kind, len(list(same))) for kind, same in groupby([kinds] if isinstance(kinds, str) else kinds)]
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in groups)


def show(console: "Console", config: "RunConfig") -> None:
    """Every field that can be set, with its value and what it is."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from selattn.training.describe import descriptions
    from selattn.training.overrides import fields

    model, about = config.maker().settings(config), descriptions(config)
    table = Table(title=config.name, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    table.add_column("field", no_wrap=True)
    table.add_column("value", overflow="fold", max_width=24)
    table.add_column("what it is")
    for name in fields(config):
        value: Any = config
        if name.startswith("model."):
            value = getattr(model, name.removeprefix("model."))
        else:
            for part in name.split("."):
                value = getattr(value, part)
        table.add_row(name, escape(str(value)), escape(about.get(name, "")))
    console.print(table)
