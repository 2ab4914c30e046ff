"""One small target, every family of drafter trained for it alike, and the tables that compare them.

`python -m training.lab run --out DIR` makes the target, its text and every run of the plan, and goes on where it was
stopped; `python -m training.lab report --out DIR` writes tables, plots and raw figures from what is there.
"""
