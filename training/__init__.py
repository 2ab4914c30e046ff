"""From prompts to a drafter for any target (`dspark train`), and the recipe of the demo pair (`python -m training`).

    split -> regenerate -> encode -> [target_cache] -> trainer -> calibrate -> evaluate

Nothing here is imported by the services; training reads `dspark/model` and writes released-format folders.
"""
