#include "profiler/read/definitions.h"

namespace kvscope {

const std::vector<Definition>& definitions() {
    static const std::vector<Definition> table{
        {"step", "Step",
         "One pass of the whole batch through the model. Step 0 is the prefill: it reads the prompts and gives the "
         "first token "
         "of every sequence. Each later step is a decode step: it feeds one token per unfinished sequence and gives "
         "the next."},
        {"wall-time", "Wall time",
         "Measured time from the beginning to the end of a step on the computer that ran it. Recording is included; "
         "modelled "
         "transfer time is not."},
        {"block", "KV block",
         "A run of consecutive tokens whose keys and values are selected and moved together, separately for every "
         "layer and KV "
         "head. Block b of size B holds tokens b·B to b·B + B − 1."},
        {"selected", "Selected blocks",
         "The blocks a KV head attends to in a step. Summed over layers, sequences and KV heads unless one of them is "
         "named."},
        {"origin", "Origin of a block",
         "Why a block was selected. Sink: first blocks of the sequence. Window: most recent blocks. Query-aware: its "
         "score for "
         "the query at hand was among the best. Query-agnostic: chosen by a score that does not depend on the query, "
         "such as an "
         "eviction head. Token-level: single tokens were chosen."},
        {"score", "Score",
         "The number the selection sorted by: the query-agnostic score for query-agnostic blocks, the query-aware "
         "score for all "
         "others. Scores of different origins, layers or methods have different scales."},
        {"hit", "Hit and miss",
         "A selected block is a hit when it already lay in the device tier at the moment it was selected, else a miss: "
         "then it "
         "is copied from the host store before the attention can use it."},
        {"hit-rate", "Hit rate",
         "Hits divided by hits plus misses, over selected blocks. Not a share of bytes, and not a share of all cached "
         "blocks."},
        {"locality", "Locality γ",
         "γ(t) = |S(t) ∩ S(t−1)| / |S(t)| over the blocks S of one sequence, layer and KV head: the share of this "
         "step's blocks "
         "that the step before selected too. Undefined in the first decode step of a sequence. Averages leave "
         "undefined values and "
         "steps that open a block out; a single step or cell shows its value whatever it is."},
        {"cold", "Cold step",
         "A decode step in which a sequence, or a request of a server, selects for the first time. Its device slots "
         "are still empty, so that its misses say nothing about the method. Totals count it; rates, shares and means "
         "leave it out unless they are asked to count it."},
        {"opens-block", "Step that opens a block",
         "A step in which some sequence began a new KV block. A method may choose differently there, so these steps "
         "are labelled."},
        {"transfer", "Transfer time", "Time the link between host memory and device tier is busy, both directions."},
        {"exposed", "Exposed transfer time",
         "The part of the transfer time that lies on the critical path: the step with its transfers minus the same "
         "step with all "
         "hits. What overlaps with computing is hidden and does not count."},
        {"modelled", "Measured, modelled, predicted",
         "Measured: a clock ran while it happened. Modelled: computed from real events and a stated link (bytes / "
         "bandwidth + "
         "latency per transfer); the blocks were really copied, but the time belongs to the link you chose. Predicted: "
         "what a "
         "replay says a different setting would have done. The three are never added to each other."},
        {"slots", "Device KV slots",
         "Blocks that the device tier can hold for every sequence, layer and KV head. With 0 everything stays resident "
         "and "
         "nothing is transferred."},
        {"budget", "Budget", "The most blocks a KV head attends to in one step, sink and window included."},
        {"tokens-per-second", "Tokens per second",
         "Generated tokens of all sequences divided by the measured wall time of the decode steps. The prefill is not "
         "included, "
         "and modelled transfer time is not added."},
        {"mass", "Attention mass captured",
         "Share of the full softmax attention that falls on the selected blocks, 0 to 1. Only recorded with the oracle "
         "switched "
         "on, because it needs the full attention of every step."},
        {"recall", "Recall",
         "Of the blocks with the most attention mass, as many as were selected: the share that was selected, 0 to 1. "
         "Only recorded with the oracle."},
        {"far-mass", "Far attention mass",
         "Of the attention beyond sink and window, the share that falls on selected blocks, 0 to 1. Only recorded with "
         "the "
         "oracle."},
        {"breakdown", "Breakdown",
         "Wall time of a step by stage: qkv_linear, rope, compression, stage1, pooling, offloading, stage2 (or "
         "attention on the "
         "dense path), o_linear, ffn inside the layers; embed, lm_head, sample outside; other is the rest, so that all "
         "parts add "
         "up to the wall time."},
        {"dropped", "Dropped steps",
         "Steps the recorder had to leave out because storage could not keep up. Anything but 0 means that sums over "
         "the trace "
         "are too small."},
        {"recording", "Recording adds",
         "What recording adds to a step: measured by doing the same with and without it in turn, or the time that "
         "hooks and writing took of the thread that decodes. Not known where it was not measured."},
        {"writer", "Writer time",
         "Time the recorder's own thread spent writing the trace. It runs beside the engine, which never waits for "
         "it."},
    };
    return table;
}

} // namespace kvscope
