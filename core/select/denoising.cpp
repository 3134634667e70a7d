#include "core/select/denoising.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::select {
namespace {

constexpr int kDenseBlockTokens = 64; // of the prefix's KV blocks where nothing is chosen among them

Parameter choice(const char* key, const char* fallback, const char* help, std::vector<std::string> names) {
    return {key, ParameterType::Choice, fallback, 0, 0, "", help, std::move(names)};
}

Unmasking strategyOf(const std::string& name) {
    for (const Unmasking strategy : {Unmasking::Sequential, Unmasking::LowConfidenceStatic, Unmasking::EntropyBounded})
        if (name == nameOf(strategy)) return strategy;
    return Unmasking::LowConfidenceDynamic;
}

Parameter cleanForward() {
    return choice("final", "dense",
                  "A block's clean forward, whose keys and values are kept. dense: every token attends to the whole "
                  "prefix; reuse: as the forwards before it.",
                  {"dense", "reuse"});
}

void refuseUneven(const char* what, int tokens) {
    if (tokens % 16 != 0)
        throw Error(ErrorKind::BadInput, fmt::format("a {} of {} tokens is not a multiple of 16", what, tokens),
                    fmt::format("use {}=16, 32, 48 ... up to 256", what));
}

/// Takes this share of pagesPerQuery for agnosticPages, which are chosen once a block.
void shareWithAgnostic(double share, DenoiseOptions& options) {
    options.agnosticPages = int(options.pagesPerQuery * share);
    options.pagesPerQuery -= options.agnosticPages;
    if (options.agnosticPages > 0 && options.firstSparse)
        throw Error(ErrorKind::BadInput,
                    "a query-agnostic share is chosen by the attention of a block's dense first forward, and that one "
                    "is sparse",
                    "use first=dense, or agnostic_share=0");
}

} // namespace

Parameter trimEndParameter() {
    return choice(
        "trim_end", "yes",
        "Tokens behind an end of text, in the block that holds it. yes: they are recorded and not part of the "
        "generated text; no: they are part of it.",
        {"yes", "no"});
}

std::vector<Parameter> denoisingParameters() {
    return {
        {"block",
         ParameterType::Integer,
         "16",
         1,
         kMostBlockLength,
         "tokens",
         "Tokens that are denoised together; they see each other and everything before them. Default: the checkpoint's "
         "block_size.",
         {}},
        {"steps",
         ParameterType::Integer,
         "0",
         0,
         kMostBlockLength,
         "forwards",
         "Forwards that share the writing of a block: each writes block / steps tokens, the first ones one more where "
         "that leaves a rest. 0: as many as the block has tokens.",
         {}},
        choice(
            "strategy", "low_confidence_dynamic",
            "Which masked positions a forward writes. sequential: the leftmost; low_confidence_static: the most "
            "confident; low_confidence_dynamic: all more confident than threshold, or as static where those are fewer; "
            "entropy_bounded: those of least entropy whose sum stays below entropy_bound, at least one.",
            {"sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"}),
        {"threshold",
         ParameterType::Number,
         "0.9",
         0,
         1,
         "",
         "Confidence above which low_confidence_dynamic writes.",
         {}},
        {"entropy_bound",
         ParameterType::Number,
         "0.35",
         0,
         1000,
         "nats",
         "Sum of entropies that entropy_bounded allows.",
         {}},
        choice("prompt_mask", "text",
               "Mask ids in a prompt. text: tokens like any other, which are never rewritten; denoise: masks, so that "
               "denoising begins with the block that holds the first one.",
               {"text", "denoise"}),
        trimEndParameter(),
    };
}

std::vector<Parameter> pageDenoisingParameters(bool activeSets) {
    std::vector<Parameter> all = denoisingParameters();
    all.push_back(
        {"budget",
         ParameterType::Integer,
         "256",
         1,
         1 << 24,
         "tokens",
         "Tokens of the prefix that a query chooses: budget / page pages, at least one. An incomplete last page "
         "comes on top.",
         {}});
    all.push_back({"page",
                   ParameterType::Integer,
                   "16",
                   16,
                   256,
                   "tokens",
                   "Tokens of one page of the prefix: the unit of selection. A multiple of 16.",
                   {}});
    if (activeSets) {
        all.push_back({"active",
                       ParameterType::Integer,
                       "5",
                       0,
                       kMostBlockLength,
                       "tokens",
                       "Tokens of a block that attend to the prefix anew: those whose queries changed most since the "
                       "forward before. The others keep their outputs.",
                       {}});
        all.push_back({"active_threshold",
                       ParameterType::Number,
                       "-1",
                       -1,
                       1e9,
                       "",
                       "Replaces active: every token whose change is at least this attends anew, so that 0 means all. "
                       "-1: active decides.",
                       {}});
        all.push_back(choice("active_set", "layer",
                             "layer: one active set for all heads of a layer, by the mean change of its query heads; "
                             "kv_head: one for each KV head.",
                             {"layer", "kv_head"}));
        all.push_back(
            {"agnostic_share",
             ParameterType::Number,
             "0",
             0,
             1,
             "",
             "Share of a query's pages that does not follow the query, as in NOSA: floor(pages * share) of them are "
             "chosen once a block for each KV head, those to which the block's tokens gave most attention in its dense "
             "first forward. Each active query chooses the rest among the other pages. 0: queries choose all.",
             {}});
    }
    all.push_back(choice("first", "dense",
                         "A block's first forward. dense: every token attends to the whole prefix; sparse: every token "
                         "chooses pages.",
                         {"dense", "sparse"}));
    all.push_back(cleanForward());
    if (activeSets)
        all.push_back(
            choice("fetch", "on_demand",
                   "How pages of a prefix that waits on the host travel (--device-kv). on_demand: a layer loads "
                   "what it has chosen, and waits; ahead: before a forward begins it asks, layer by layer, for "
                   "the pages of the forward before and those that the tokens just written, in a block's second "
                   "forward all tokens, would choose by their queries there; what it missed is loaded on demand.",
                   {"on_demand", "ahead"})
                .within(ParameterScope::Offloading));
    return all;
}

std::vector<Parameter> tileDenoisingParameters() {
    std::vector<Parameter> all = denoisingParameters();
    all.push_back(
        {"budget",
         ParameterType::Integer,
         "256",
         1,
         1 << 24,
         "tokens",
         "Tokens of the prefix that a row of the mask keeps, in whole tiles: floor(tiles * budget / prefix) + "
         "1 of them, at most all.",
         {}});
    all.push_back(
        {"tile",
         ParameterType::Integer,
         "16",
         16,
         256,
         "tokens",
         "Keys, and queries of the block, of one tile of the mask. A multiple of 16. The paper's code has 128, "
         "or 32 for short prompts.",
         {}});
    all.push_back(
        {"skip",
         ParameterType::Number,
         "0.2",
         0,
         1,
         "",
         "Share of a block's steps that attend to the whole prefix: floor(steps * skip) + 1 forwards. The last "
         "one of them makes the mask.",
         {}});
    all.push_back(choice("scale", "head_dim",
                         "What the mask's scores are divided by. head_dim: the square root of a head's channels, as "
                         "attention does; reference: that of the number of query heads, as the paper's code for LLaDA.",
                         {"head_dim", "reference"}));
    all.push_back(cleanForward());
    return all;
}

DenoiseOptions denoiseOptions(const ParameterValues& values) {
    DenoiseOptions options;
    options.block = values.integer("block");
    options.steps = values.integer("steps");
    if (options.steps == 0) options.steps = options.block;
    options.strategy = strategyOf(values.text("strategy"));
    options.threshold = values.number("threshold");
    options.entropyBound = values.number("entropy_bound");
    options.promptMasks = values.text("prompt_mask") == "denoise";
    options.trimEnd = values.text("trim_end") == "yes";
    options.tiles = values.has("tile");
    options.pages = options.tiles || values.has("page");
    if (!options.pages) return options;
    options.finalSparse = values.text("final") == "reuse";
    options.budget = values.integer("budget");
    if (options.tiles) {
        options.page = values.integer("tile");
        refuseUneven("tile", options.page);
        options.everyToken = true;
        options.skip = values.number("skip");
        options.scaledByHeads = values.text("scale") == "reference";
        return options;
    }
    options.page = values.integer("page");
    refuseUneven("page", options.page);
    options.pagesPerQuery = std::max(1, options.budget / options.page);
    options.everyToken = !values.has("active");
    if (!options.everyToken) {
        options.active = values.integer("active");
        if (values.number("active_threshold") >= 0) options.activeThreshold = values.number("active_threshold");
        options.activePerHead = values.text("active_set") == "kv_head";
        options.fetchAhead = values.text("fetch") == "ahead";
    }
    options.firstSparse = values.text("first") == "sparse";
    if (!options.everyToken) shareWithAgnostic(values.number("agnostic_share"), options);
    return options;
}

SelectionSpec denoisingSpec(const ParameterValues& values) {
    const DenoiseOptions options = denoiseOptions(values);
    SelectionSpec spec;
    spec.dense = !options.pages;
    spec.blockSize = options.pages ? options.page : kDenseBlockTokens;
    spec.grid.blockSize = spec.blockSize;
    if (options.pages && !options.tiles) spec.queryScore = QueryScore::RangeBound;
    spec.traceBudget = -1; // a union of what the active tokens chose: it has no bound but the prefix
    return spec;
}

} // namespace kvscope::select
