"""What SGLang and vLLM load in each of their processes. Without KVSCOPE_TRACE it returns at once and imports nothing of kvscope.

    KVSCOPE_TRACE=/data/run-%r.kvtrace vllm serve ...
    KVSCOPE_TRACE=/data/run-%r.kvtrace python -m sglang.launch_server ...
"""

from __future__ import annotations

import os

_loaded: set[str] = set()  # engines load plugins more than once


def sglang() -> None:
    """Entry point of group sglang.srt.plugins."""
    if "KVSCOPE_TRACE" in os.environ and "sglang" not in _loaded:
        _loaded.add("sglang")
        from kvscope.serving import record_sglang

        record_sglang()


def vllm() -> None:
    """Entry point of group vllm.general_plugins."""
    if "KVSCOPE_TRACE" in os.environ and "vllm" not in _loaded:
        _loaded.add("vllm")
        from kvscope.serving import record_vllm

        record_vllm()
