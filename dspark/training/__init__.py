"""Training of a drafter for any target, from prompts to a checkpoint (`dspark train`).

    split -> regenerate -> encode -> [cache] -> trainer -> calibrate -> evaluate

Nothing here is imported by the services; training reads `dspark/model` and writes released-format
folders.
"""
