"""The recipe of the demo pair: corpus, tokenizer, target, continuations, drafter, calibration, evaluation.

Nothing here is imported by the services; training reads `dspark/model` and writes released-format folders.
"""
