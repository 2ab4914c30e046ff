"""A byte-level BPE tokenizer, trained on the training split.

Digits stay single, so that arithmetic is done on digits; a line break takes the indentation after it along,
so that a step of indentation is one token of code.
"""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training.corpus import Document

VOCABULARY = 4096
END_OF_TEXT, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"
# The two of a chat template are reserved: the demo target is a plain language model.
SPECIAL = [END_OF_TEXT, PAD, MASK, "<|im_start|>", "<|im_end|>"]
END_OF_TEXT_ID, PAD_ID, MASK_ID = range(3)
PIECES = r"\n+[ ]*| ?[\p{L}_]+| ?\p{N}| ?[^\s\p{L}\p{N}_]+|[ ]+(?=[ ])|\s"
# Arithmetic repeats itself and would fill the merges with names; a part of it teaches its words.
MATH_DOCUMENTS = 600


def train(documents: list[Document], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    texts, math = [], 0
    for document in documents:
        math += document.domain == "math"
        if not document.held_out and (document.domain != "math" or math <= MATH_DOCUMENTS):
            texts.append(document.text)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=PAD,
        mask_token=MASK,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def load(folder: Path) -> PreTrainedTokenizerFast:
    loaded = PreTrainedTokenizerFast.from_pretrained(folder)
    for key in ("is_local", "local_files_only"):
        # How it was found on this machine is no part of what is saved again.
        loaded.init_kwargs.pop(key, None)
    return loaded
