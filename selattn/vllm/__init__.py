"""Serving on vLLM: every request costs a constant, however long its text grows. See docs/serving.md.

vLLM calls `register` through the entry point `vllm.general_plugins`. Only `register` and what `selattn serve` needs can
be imported without vLLM.
"""

from selattn.vllm.plugin import register

__all__ = ["register"]
