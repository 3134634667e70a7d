"""Records what sparse attention selected, moved and took, into a KVScope trace, and reads such traces.

    import kvscope

    with kvscope.record("run.kvtrace", model) as rec:       # a model of transformers
        model.generate(**inputs, max_new_tokens=64)

    trace = kvscope.open("run.kvtrace")
    trace.selections                                         # a data frame of pandas or polars
"""

from ._library import Error, library_version
from .reading import Trace, open
from .writing import KNOWN, Recorder, Run, Step, record

__all__ = ["KNOWN", "Error", "Recorder", "Run", "Step", "Trace", "library_version", "open", "record"]
__version__ = "0.1.0"
