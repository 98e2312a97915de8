"""What carries out experiments, each from trained models to a record, a table and a figure.

frame     what an experiment is, which models it needs, and what its record holds
settings  what may be set in every training of an experiment
cost      about how long a run takes
store     trained models by what they were trained with, shared by all experiments
recorded  losses of trainings that stand in records
lab       what an experiment is given to measure with
tasks     accuracy and loss on the synthetic tasks
trio      the three language models that most is measured on
grids     tables of losses, each compared with another
courses   losses by the number of training tokens
pruned    searches for budgets, trade-offs and what they are read off for
needle    a rare name that has to be copied from far back
pictures  what pictures of F show, as numbers
verdicts  whether a number bears a claim out
tables    a record as a table, in Markdown and LaTeX
progress  one view over all runs, with the time left
run       train what is missing, measure, write
again     run a record again, and compare
earlier   what was recorded before there were experiments
show      tables, verdicts and lists in the terminal
"""
