"""The distribution over the wire: answers sampled through three processes, against the target's
enumerated law.

`python -m tests.wire_law` (`make wire-law`) draws 100,000 answers a setting and takes long; a short
form is a test.
"""
