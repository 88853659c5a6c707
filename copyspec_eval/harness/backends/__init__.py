"""What stock backends report of their answers beside the text, answering as they always do.

    hf        token ids, forwards (of one row at a time), prefill and decode apart
    vllm      token ids, forwards, what was drafted and accepted
    servers   token counts and, where they report them, prefill, drafts and token ids
    others    nothing, so that there are seconds and no rates

The classes here go in front of a backend's own in a class that inherits from both.
"""
