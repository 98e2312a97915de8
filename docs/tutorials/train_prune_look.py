# %% [markdown]
# # Train, prune, look
#
# In this tutorial you train a small language model with selective attention, search for the smallest cache that it
# can live with, and look at what it masks. It takes less than a minute; the commands `selattn train`, `selattn prune`
# and `selattn explore` do the same for larger models.

# %%
import json
import tempfile
from pathlib import Path

import torch

import selattn
from selattn.evaluation import Text
from selattn.training import changed, find_run

torch.set_num_threads(1)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Train
#
# A run is a whole configuration. We take one that selattn comes with, and make it much smaller. Its text is Python's
# own documentation, so that nothing has to be downloaded; `data.source` takes a file of yours. The run is of the kind
# `memory`: its loss has a term that is small where the model masks much.

# %%
smaller = {
    "data.limit": 100,  # documents
    "data.validation": 0.1,
    "data.context": 128,
    "data.vocabulary": 512,
    "model.hidden_size": 128,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.positions": "rotary",
    "optimizer.lr": 5e-3,
    "schedule.steps": 150,
    "schedule.warmup": 20,
    "evaluation.every": 50,
    "evaluation.rows": 32,
    "checkpoints.every": 150,
}
run = changed(find_run("text-small-memory"), smaller)
finished = selattn.train(run, folder / "run")
score = finished.evaluation["validation"]
print(f"validation loss {score.loss:.3f} nats per token, kept {[f'{share:.0%}' for share in score.kept]}")

# %% [markdown]
# The folder has everything: the configuration, the log, the checkpoint, and the model. Interrupted, the same call
# with `resume=True` continues, and ends with the same weights.

# %%
for path in sorted((folder / "run").iterdir()):
    print(path.name)

# %% [markdown]
# ## Prune
#
# The search begins with a budget of the whole context in every layer. Again and again the layer that suffers least
# gives up some tokens. It ends before the loss exceeds the unpruned one by more than 0.01 nats, on some rows of the
# held-out text; other rows tell whether that was luck.

# %%
found = selattn.prune(
    folder / "run",
    Text(run.data.source, layout="packed", reading=run.data.reading()),
    selattn.Until(tolerance=0.01),
    out=folder / "search",
    rows=16,
    report_rows=32,
    floor=2,  # layers give 8 tokens at a time, and at the end one at a time, down to 2
    lazy=True,
)
print(f"{found.step.budgets} of {run.data.context} tokens are kept: {found.step.factor:.1f} times less memory")
print(f"other rows: {found.reported['unpruned']:.3f} unpruned, {found.reported['pruned']:.3f} with budgets")

# %%
selattn.plot.search(json.loads((folder / "search/record.json").read_text()))

# %% [markdown]
# A model that has learned for some seconds uses the last few words only, so a few tokens are enough for it. Larger
# and longer trained ones need more ([the results](../results.md)). `generate` and `forward` take the budgets, and on
# the command line `MODEL@FOLDER` names a model with the budgets of a search.

# %%
model, tokenizer = selattn.load(folder / "run")
prompt = tokenizer("The value of the function", return_tensors="pt")
out = model.generate(**prompt, max_new_tokens=30, do_sample=False, cache_budgets=found.budgets)
print(tokenizer.decode(out[0]))

# %% [markdown]
# ## Look
#
# A trace is what the model did on one text: F, which says how much each token is masked, attention, and when each
# token is evicted under some budgets. Every picture is drawn from a trace.
#
# The model of this page has little to show, so we take one from the zoo that has seen 15 million tokens. In the first
# picture, a token that the last one still reads is lit; what is masked fades.

# %%
text = """If a function is called with keyword arguments, the names of the arguments must match the names of its \
parameters. A list is a mutable sequence of objects."""
trace = selattn.trace("zoo:memory", text, runs=[("selective", 16), ("h2o", 16)])
selattn.plot.words(trace)

# %% [markdown]
# F itself, layer by layer: how much row i finds the token of column j masked.

# %%
selattn.plot.masking(trace)

# %% [markdown]
# With 16 tokens in each layer: each bar of the plot ends where its token is evicted.

# %%
selattn.plot.kept(trace)

# %% [markdown]
# The explorer is one page that needs nothing but a browser: click a token, choose a policy, drag the budget. In a
# notebook `selattn.explore("zoo:memory", text)` shows it; here it goes into a file.

# %%
page = selattn.explore("zoo:memory", text, budgets=[8, 16])
page.save(folder / "explorer.html")
print(f"{(folder / 'explorer.html').stat().st_size / 1000:.0f} kB")
