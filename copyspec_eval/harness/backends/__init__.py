"""What stock backends report of their answers besides the text; each class goes in front of one.

hf        token ids, forwards (of one row at a time), prefill and decode
vllm      token ids, forwards, what was drafted and accepted
servers   token counts and, where they report them, prefill, drafts and token ids
others    nothing, so that there are seconds and no rates
"""
