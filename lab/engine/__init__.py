"""Carries out experiments, each from trained models to a record, a table and a figure.

experiment  what an experiment is, and the trained models that it needs
records     cells, claims and the record that holds them; whether a number bears a claim out
store       trained models by what they were trained with, shared by all experiments
lab         what an experiment is given to measure with
run         train what is missing, measure, write; run a record again
progress    one view over all runs, with the time left
losses      tables of losses, each compared with another
pruning     searches for budgets, trade-offs, and what is read off them
tables      a record as a table, in Markdown and LaTeX
"""
