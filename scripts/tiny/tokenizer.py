"""The embedded model's tokenizer: byte-level BPE of the conversations, and a chat template."""

import random
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tiny.conversations import training_conversation
from tiny.turns import Turn

VOCABULARY_SIZE = 2048
PAD, END = "<|pad|>", "<|end|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}

_WORDS = Regex(r"[ _]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}_]+|_+|\s+(?!\S)|\s")
"""Words with a leading space or underscore, single digits, punctuation, and white space."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(seed: int, num_conversations: int = 20_000) -> PreTrainedTokenizerFast:
    """Train the tokenizer on conversations like those that the model is trained on."""
    rng = random.Random(f"tokenizer {seed}")
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(_WORDS, "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[PAD, END, *ROLES.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(rng, num_conversations), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES.values()),
        chat_template=_CHAT_TEMPLATE,
        model_max_length=2048,
    )


def _texts(rng: random.Random, num_conversations: int) -> Iterable[str]:
    for _ in range(num_conversations):
        for turn in training_conversation(rng):
            yield turn.user
            yield turn.answer


def encode(tokenizer: PreTrainedTokenizerFast, turns: list[Turn]) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and which of them are learned: answers and their end tokens."""
    ids: list[int] = []
    learned: list[bool] = []
    user, assistant, end = (
        tokenizer.get_vocab()[token] for token in (ROLES["user"], ROLES["assistant"], END)
    )
    for turn in turns:
        question = [user, *tokenizer(turn.user).input_ids, end, assistant]
        answer = [*tokenizer(turn.answer).input_ids, end]
        ids += question + answer
        learned += [False] * len(question) + [turn.learned] * len(answer)
    return ids, learned
