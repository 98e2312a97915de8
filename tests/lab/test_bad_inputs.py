"""Every command of the lab refuses what it cannot do in one line, and leaves nothing behind."""

import shlex

import pytest

from lab.__main__ import main as lab
from tests.evaluation.folders import text_file
from tools.records import main as records

HUGE = 10**30
CASES = {
    "needle --all": "give names of experiments, or --all; see 'python -m lab list'",
    "neddle": "unknown experiment 'neddle'; did you mean 'needle'?",
    "needle --scale huge": "invalid choice: 'huge'",
    "needle --source text.txt": "--source would change nothing: the smoke scale reads",
    "pseudocode --scale laptop --source text.txt": "--source would change nothing: pseudocode reads no such text",
    "wikitext --scale laptop --source text.txt": "--source would change nothing",
    "copy parity --scale laptop --text wikitext=text.txt": "--text wikitext would change nothing: copy, parity read",
    "needle --seeds 0,x": "must be a whole number, not 'x'",
    "needle --seeds 1,1": "must be different seeds, not '1,1'",
    "needle --out text.txt": "text.txt is not a folder",
    "needle seed=1": "seed=... is set by --seeds",
    "needle fine-tuning schedule.steps=9": "schedule.steps=... cannot be set for fine-tuning, whose",
    "needle batch.sise=1": "unknown field 'batch.sise'",
    "list neddle": "did you mean 'needle'?",
    "course --scale laptop --seeds 0": "name a text of yours with --source TEXT; docs/data.md tells",
    "again nowhere.json": "cannot read nowhere.json",
    "again neddle": "did you mean 'needle'?",
    "again": "the following arguments are required: RECORD",
    "demo --steps 0": "--steps must be at least 1, not 0",
    "demo --example --steps 3": "--steps would change nothing: --example trains nothing",
    "show": "the following arguments are required: name",
    "show parrity": "unknown task 'parrity'; did you mean 'parity'?",
    f"show copy --samples {HUGE}": "--samples must be at most",
    f"show copy --seed {HUGE}": "--seed must be at most",
    "show copy --set longest": "--set takes NAME=NUMBER",
    f"show copy --set longest={HUGE}": "the number of at most 6 digits",
    "show copy --set longst=3": "task copy has no setting 'longst'; did you mean 'longest'?",
    "show copy --set longest=0": "copy: longest (0) is less than shortest (1)",
    "train": "no run given: give one that --list lists",
    "train parity-smal-selective": "unknown run 'parity-smal-selective'; did you mean 'parity-small-selective'?",
    "train parity-small-selective data.bits=0": "parity: bits must be at least 2",
    "zoo memroy": "unknown model 'memroy'; did you mean 'memory'?",
    "zoo standard --source nowhere.txt": "no such file or folder: nowhere.txt",
    "zoo standard nonsense=1": "unknown field 'nonsense'",
    "zoo variable-assignment-standard --source text.txt": "--source would change nothing",
    "zoo --source ''": "--source must not be empty",
    "nope": "unknown experiment 'nope'; see 'python -m lab list'",
    "needle needle": "needle is named twice: give each experiment once",
    "needle --scale laptop --source nowhere.txt": "no such file or folder: nowhere.txt",
    "again text.txt": "text.txt is not a record",
    "demo --html a.txt": "--html must end with .html, not 'a.txt'",
    "show nope": "unknown task 'nope'; there are variable-assignment, copy, parity",
    "train parity-small-selective batch.size=1000000000": "GB are free",
    "train t5-tiny-selective model.d_model=0": "model.d_model must be at least 1, not 0",
    "zoo standard --runs text.txt": "text.txt is not a folder",
    "mixture": "the following arguments are required: SOURCE, --out",
}
AUTHORS = {  # of `python -m tools.records`
    "masks --scale laptop --positions sinus": "unknown positions 'sinus': choose rotary or learned",
    "masks --scale laptop --positions rotary,rotary": "must be different positions",
    "masks --positions learned": "--positions is for the laptop scale: at the smoke scale",
    "needle --scale laptop --positions rotary": "--positions would change nothing: needle does not",
    "needle --extend": "--extend is for tables of losses: needle measures the trained models",
    "needle --adopt text.txt": "text.txt is not a folder: --adopt takes",
    "needle --adopt ''": "'' is not a folder: --adopt takes",
}


@pytest.mark.parametrize("words", [*CASES, *AUTHORS])
def test_refused_in_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SELATTN_ZOO", str(tmp_path / "no zoo"))
    text_file(tmp_path / "text.txt", documents=4)
    command = records if words in AUTHORS else lab
    assert command(shlex.split(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("selattn: error: ")
    assert err.count("\n") == 1
    assert {**CASES, **AUTHORS}[words] in err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
