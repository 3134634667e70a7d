"""Records what sparse attention selected, moved and took, into a KVScope trace, and reads such traces.

    import kvscope

    with kvscope.record("run.kvtrace", model) as rec:       # a model of transformers
        model.generate(**inputs, max_new_tokens=64)

    trace = kvscope.open("run.kvtrace")
    trace.selections                                         # a data frame of pandas or polars

A loop of your own says what it selected:

    >>> import kvscope
    >>> with kvscope.record("mine.kvtrace") as rec, rec.run(method="mine", block_size=16, block_bytes=8192, layers=1) as run:
    ...     for position in (100, 101):
    ...         with run.step() as step:
    ...             step.select(0, [[0, 5, 6]], position=[position])  # blocks of the one row
    >>> kvscope.open("mine.kvtrace").columns("selections")["kept"]
    [None, 3]

Beside it: kvscope.methods (what methods select), kvscope.shadow (a dense model beside a method), kvscope.serving (SGLang and vLLM),
kvscope.parquet (many traces).
"""

from ._library import Error, library_version
from .converting import from_indexer_topk, from_reply
from .overhead import Overhead, measure_overhead
from .reading import Trace, open
from .writing import KNOWN, Recorder, Run, Step, record

__all__ = ["KNOWN", "Error", "Overhead", "Recorder", "Run", "Step", "Trace", "from_indexer_topk", "from_reply", "library_version",
           "measure_overhead", "open", "record"]  # fmt: skip
__version__ = "0.1.0"
