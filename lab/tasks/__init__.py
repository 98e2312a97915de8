"""The paper's synthetic tasks. A task is a frozen set of settings; sample i of it is a pure function of (seed, i)."""

from __future__ import annotations

import dataclasses

from lab.tasks.copy import Copy
from lab.tasks.parity import Parity
from lab.tasks.variable_assignment import VariableAssignment
from selattn.data.task import IGNORE, Task, TaskDataset
from selattn.errors import SelattnError
from selattn.utils.suggest import advice

__all__ = ["IGNORE", "TASKS", "Copy", "Parity", "Task", "TaskDataset", "VariableAssignment", "make_task"]

TASKS: dict[str, type[Task]] = {task.name: task for task in (VariableAssignment, Copy, Parity)}


def make_task(name: str, **settings: int | None) -> Task:
    """A task by its name; a mistyped name or setting gets the nearest right one."""
    if name not in TASKS:
        raise SelattnError(f"unknown task {name!r}; {advice(name, TASKS)}")
    known = [field.name for field in dataclasses.fields(TASKS[name])]
    for setting in settings:
        if setting not in known:
            raise SelattnError(f"task {name} has no setting {setting!r}; {advice(setting, known)}")
    return TASKS[name](**settings)
