"""What vLLM itself is asked."""


def list_prompts(*places: str) -> list[str]:
    """Prompts of many lengths whose answers repeat them."""
    return [
        "<|im_start|>user\nHere is a list: "
        f"{', '.join(f'item {n} of {place}' for n in range(size))}. "
        "Write the same list again.<|im_end|>\n<|im_start|>assistant\n"
        for size in (3, 40, 9, 21)
        for place in places
    ]
