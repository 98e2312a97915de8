"""`python -m lab zoo --cards`: the model cards of the zoo, from each config and the record of its training."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from selattn.models import SelectiveConfig
from selattn.training.folder import RECORD
from selattn.training.record import Score, TrainingRecord
from selattn.utils.records import Provenance, read_body
from selattn.utils.tables import Table

CARD, WIDTH = "README.md", 118
TEXT = """\
The text is enwik8-clean: articles of the English Wikipedia, from the first 100 million bytes of a dump of March 2006,
without markup (how it is made: [docs/data.md](../../docs/data.md#enwik8-clean)). {held_out:.0%} of the documents were
held out for validation. The tokenizer is a SentencePiece model with {vocabulary:,} pieces, learned from the same text.
A row of training has {context:,} tokens."""
TASK = """\
Variable Assignment, drawn at random while training, as in the paper's appendix: {assignments} assignments to
{variables} variables with {values} values, then a question for the current value of one of them. A word is a token;
[sample.txt](sample.txt) is a sample with its answer. The set `out_of_distribution` has the values 0 and 1 only, which
training never limits itself to."""
TRAINING = """\
{steps:,} steps of {size} rows, {tokens:.1f} million tokens in all, seed {seed}, {precision}, in {minutes:.0f} minutes
on {threads} CPU thread. AdamW with a learning rate of {lr} and {decay} decay after {warmup} steps of warm-up. The
weights here are rounded to bf16. All settings, versions and checksums are in [{record}]({record})."""
LOSS = """\
The mean over tokens of -log p(next token) in nats, at the end of training, before rounding."""
KEPT = """\
*Kept* is the share of its tokens that each layer still reads, by the paper's M. It is an estimate; `selattn eval`
measures what a budget costs."""
TEXT_LIMITS = """\
- It is tiny and was trained for {tokens:.0f} million tokens: it completes words and short phrases, and knows no facts.
- It has read one kind of English, Wikipedia of 2006, with its errors and biases. On other texts its loss is higher.
- It is no chat model, and nothing was filtered for safety. It is for tests, demos and study."""
TASK_LIMITS = """\
- It knows this one task and no language. Other numbers of variables, or longer samples, are not part of its training.
- It is one seed: other seeds of the same run come out differently. It is for tests, demos and study."""
WIKIPEDIA = """\
The weights are under Apache-2.0, like the code. Wikipedia's text of 2006 is under the GFDL, and since 2009 also under
CC BY-SA 3.0. The text is not in this folder, except for the pieces of words in the tokenizer."""
GENERATED = "The weights are under Apache-2.0, like the code, which generates the data."


def card(folder: Path) -> str:
    """The card of a model, as the model hub reads it: YAML in front, then Markdown."""
    config = SelectiveConfig.from_pretrained(folder)
    record = read_body(folder / RECORD, TrainingRecord)
    made = read_body(folder / RECORD, Provenance)
    run, name = record.run, folder.name
    data, layers, tokens = run["data"], config.num_hidden_layers, record.tokens / 1e6
    text = data["kind"] == "text"
    training = TRAINING.format(
        steps=record.steps,
        size=run["batch"]["size"],
        tokens=tokens,
        seed=run["seed"],
        precision=run["machine"]["precision"],
        minutes=record.seconds / 60,
        threads=made.machine["threads"],
        lr=run["optimizer"]["lr"],
        decay=run["schedule"]["decay"],
        warmup=run["schedule"]["warmup"],
        record=RECORD,
    )
    sizes = [
        ("Parameters", f"{record.parameters:,}"),
        ("Layers, heads, width", f"{layers}, {config.num_attention_heads}, {config.hidden_size}"),
        ("Positions", f"{config.positions}, up to {config.max_position_embeddings:,} tokens"),
        ("Vocabulary", f"{config.vocab_size:,}"),
        ("Weight of the memory term (epsilon)", f"{config.memory_epsilon:g}"),
    ]
    parts = [
        front(text),
        f"# {name}",
        fill(f"{_kind(config)} It is one of the small models that come with selattn: `zoo:{name}`.", WIDTH),
        "## How to load it",
        _snippet(name, text),
        "## Data",
        fill(TEXT.format(held_out=data["validation"], **data) if text else TASK.format(**data), WIDTH),
        "## Training",
        fill(training, WIDTH),
        Table(("Size", ""), sizes).grid(),
        "## Loss",
        fill(f"{LOSS} {KEPT}" if config.selects else LOSS, WIDTH),
        _losses(record.evaluation),
        "## Limits",
        (TEXT_LIMITS if text else TASK_LIMITS).format(tokens=tokens),
        "## Licence",
        fill(WIKIPEDIA if text else GENERATED, WIDTH),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def front(text: bool) -> str:
    """The YAML that the model hub reads."""
    lines = ["license: apache-2.0", "library_name: selattn", "pipeline_tag: text-generation"]
    lines += ["language: en"] if text else []
    return "\n".join(["---", *lines, "tags: [selective-attention, kv-cache]", "---"])


def _kind(config: SelectiveConfig) -> str:
    if not config.selects:
        return "A decoder with standard attention, the control for the selective models."
    if config.memory_epsilon:
        return "A decoder with selective attention, trained with the memory term, so that it forgets more."
    return "A decoder with selective attention, trained without the memory term."


def _snippet(name: str, text: bool) -> str:
    prompt = "The history of the city" if text else "Z= 62 X= 6 Z= 92 Z="
    return f"""\
```python
import selattn

model, tokenizer = selattn.load("zoo:{name}")  # or the path of this folder
prompt = tokenizer("{prompt}", return_tensors="pt")
text = model.generate(**prompt, max_new_tokens={30 if text else 1}, do_sample=False)
print(tokenizer.decode(text[0]))
```

After `import selattn`, `AutoModelForCausalLM` and `AutoTokenizer` of transformers load it, too. The folder
holds no code."""


def _losses(evaluation: dict[str, Score]) -> str:
    def row(name: str, score: Score) -> tuple[str, str, str, str]:
        accuracy = "" if score.accuracy is None else f"{score.accuracy:.1%}"
        kept = ", ".join("all" if share is None else f"{share:.1%}" for share in score.kept or ())
        return name, f"{score.loss:.4f}", accuracy, kept

    rows = [row(name, score) for name, score in evaluation.items()]
    heads = ("set", "loss", "answers that are right", "kept in each layer")
    shown = [i for i in range(len(heads)) if any(each[i] for each in rows)]
    return Table(tuple(heads[i] for i in shown), [tuple(each[i] for i in shown) for each in rows]).grid()


def write_cards(models: dict[str, Path]) -> list[Path]:
    """Write the cards that are missing or stale, and return their paths."""
    stale = [folder for folder in models.values() if not fresh(folder)]
    for folder in stale:
        (folder / CARD).write_text(card(folder))
    return [folder / CARD for folder in stale]


def fresh(folder: Path) -> bool:
    """Whether the card is there and says what the record says."""
    return (folder / CARD).is_file() and (folder / CARD).read_text() == card(folder)
