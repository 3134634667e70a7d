#include "core/select/canvas.h"

#include "base/error.h"
#include "core/select/denoising.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {

int CanvasOptions::quota(int step, int masks, int left) const {
    if (seedsFirst(step)) return std::min(left, 1);
    if (byNoise()) return step + 1 >= stepsOfBlock() ? left : std::min(left, int(left * share(step)));
    const int shared = stepsOfBlock();
    const int count = step < shared ? masks / shared + (step < masks % shared ? 1 : 0) : 0;
    return std::clamp(count, std::min(left, 1), left); // more forwards follow where quotas leave masks
}

double CanvasOptions::share(int step) const {
    const int last = stepsOfBlock();
    if (step + 1 >= last) return 1;
    const auto time = [&](int i) { return 1 + (eps - 1) * i / last; };
    return 1 - time(step + 1) / time(step);
}

namespace select {
namespace {

constexpr int kMostCanvas = 1024; // positions of a forward's block that a trace can number
constexpr int kMostActive = 64;   // positions of a block of which a trace can say that they are active
constexpr int kMostForwards = 1 << 20;

Parameter canvasChoice(const char* key, const char* fallback, const std::string& help, std::vector<std::string> names) {
    return {key, ParameterType::Choice, fallback, 0, 0, "", help, std::move(names)};
}

Parameter canvasNumber(const char* key, const char* fallback, double min, double max, const char* help) {
    return {key, ParameterType::Number, fallback, min, max, "", help, {}};
}

Parameter stepsParameter() {
    return {"steps",
            ParameterType::Integer,
            "0",
            0,
            kMostForwards,
            "forwards",
            "Forwards of the whole run that share the writing. 0: as many as there are new tokens.",
            {}};
}

Parameter blockLengthParameter(const char* fallback, int least, int most, const char* help) {
    return {"block_length", ParameterType::Integer, fallback, double(least), double(most), "tokens", help, {}};
}

/// The parameter that says by what Dream's masked positions are ranked. withChance: `origin` is among its choices, by
/// which every position is written by chance.
Parameter algParameter(bool withChance) {
    if (withChance)
        return canvasChoice("alg", "origin",
                            "Which masked positions a forward writes. origin: each by chance; maskgit_plus: the most "
                            "confident; topk_margin: those whose best token leads the second one most; entropy: those "
                            "of least entropy.",
                            {"origin", "maskgit_plus", "topk_margin", "entropy"});
    return canvasChoice("alg", "entropy",
                        "Which masked positions of a block a forward writes. maskgit_plus: the most confident; "
                        "topk_margin: those whose best token leads the second one most; entropy: those of least "
                        "entropy. A block's first forward writes its first token.",
                        {"maskgit_plus", "topk_margin", "entropy"});
}

Parameter algTempParameter(const char* help) { return canvasNumber("alg_temp", "0", 0, 1000, help); }

/// The parameters of Dream's loop.
std::vector<Parameter> dreamParameters() {
    return {stepsParameter(), algParameter(true),
            canvasNumber("eps", "0.001", 0, 1,
                         "Noise that is left after the last step: step i of T writes the share 1 - t(i+1)/t(i) of "
                         "the masks, t(i) = 1 + (eps - 1) i / T; the last one writes all."),
            algTempParameter("Above 0, the positions are drawn from the softmax of what ranks them divided by this, "
                             "without replacement. 0: the highest ones. Not used by origin.")};
}

Parameter interval(const char* key, const char* fallback, const char* help) {
    return {key, ParameterType::Integer, fallback, 1, kMostForwards, "forwards", help, {}};
}

/// Adds the parameters that cache=dllm has.
void addFeatureParameters(std::vector<Parameter>& all) {
    all.push_back(interval("prompt_interval_steps", "100",
                           "cache=dllm: every so many forwards of the run compute all tokens of the prompt."));
    all.push_back(interval("gen_interval_steps", "7",
                           "cache=dllm: every so many forwards of the run compute all tokens of the canvas."));
    all.push_back(canvasNumber("transfer_ratio", "0.25", 0, 1,
                               "cache=dllm: share of the canvas, rounded down to whole tokens, that the other forwards "
                               "compute: in each layer the tokens whose values are least like those before. 0: none."));
    all.push_back(
        canvasChoice("reference", "last",
                     "cache=dllm: what a token's values are compared with. last: those of the forward before; "
                     "last_recomputed: those it had when the layer was last computed for it.",
                     {"last", "last_recomputed"}));
}

/// Adds the parameters that say how many candidates a forward writes. quota: in words, how many it writes without
/// parallel writing.
void addWriteParameters(std::vector<Parameter>& all, const char* quota) {
    all.push_back(canvasChoice(
        "parallel", "none",
        fmt::format("How many candidates a forward writes. none: {}; threshold: the most confident and all "
                    "that reach threshold; factor: the most confident and those after it while the j-th "
                    "confidence is at least 1 - factor / (j + 1).",
                    quota),
        {"none", "threshold", "factor"}));
    all.push_back(canvasNumber("threshold", "0.9", 0, 2, "Confidence from which parallel=threshold writes."));
    all.push_back(canvasNumber("factor", "1", 0, 1000, "How much parallel=factor dares."));
}

void addCacheParameter(std::vector<Parameter>& all) {
    all.push_back(
        canvasChoice("cache", "none",
                     "What a forward takes from earlier ones. none: nothing; prefix: keys and values before the block, "
                     "as the block's first forward, which computes everything, had them; dual: those after it as "
                     "well; dllm: what each layer added to tokens that are not computed anew.",
                     {"none", "prefix", "dual", "dllm"}));
    addFeatureParameters(all);
}

void addTileParameters(std::vector<Parameter>& all, bool shifted) {
    all.push_back(
        canvasNumber("select", "0.3", 0, 1,
                     "Share of the tiles that a row of a mask keeps, of prompt and canvas together and of the "
                     "canvas alone: floor(tiles * select) + 1 of them, at most all."));
    all.push_back({"tile",
                   ParameterType::Integer,
                   "128",
                   16,
                   256,
                   "tokens",
                   "Keys, and queries, of one tile of a mask. A multiple of 16. The paper has 32 for short prompts.",
                   {}});
    all.push_back(
        canvasNumber("skip", "0.2", 0, 1,
                     "Share of the steps that are dense: forwards 0 to floor(steps * skip) + 1 of the run, of "
                     "which the last one makes the masks."));
    all.push_back(canvasChoice(
        "scale", "head_dim",
        shifted ? "What the masks' scores are divided by: the square root of a head's channels, as attention does. "
                  "reference is the same: so has the paper's code for Dream."
                : "What the masks' scores are divided by. head_dim: the square root of a head's channels, as attention "
                  "does; reference: that of the number of query heads, as the paper's code for LLaDA.",
        {"head_dim", "reference"}));
}

Parameter remaskingParameter() {
    return canvasChoice("remasking", "low_confidence",
                        "Which candidates a forward writes. low_confidence: the most confident; random: any.",
                        {"low_confidence", "random"});
}

CanvasRank rankOf(const ParameterValues& values) {
    const std::string name = values.text(values.has("alg") ? "alg" : "remasking");
    if (name == "random") return CanvasRank::Random;
    if (name == "origin") return CanvasRank::Chance;
    if (name == "topk_margin") return CanvasRank::Margin;
    return name == "entropy" ? CanvasRank::Entropy : CanvasRank::Confidence;
}

void refuseUnevenShares(const char* what, int all, const char* by, int parts, const char* hint) {
    if (all % parts != 0)
        throw Error(ErrorKind::BadInput, fmt::format("{} {} cannot be shared evenly by {} {}", all, what, parts, by),
                    hint);
}

void takeEviction(const ParameterValues& values, CanvasOptions& options) {
    options.cache = CanvasCache::Evicted;
    options.ratio = values.number("ratio");
    options.kernel = values.integer("kernel");
    if (options.kernel % 2 == 0)
        throw Error(ErrorKind::BadInput, fmt::format("a kernel of {} tokens has no middle", options.kernel),
                    "choose an odd kernel");
}

void takeTiles(const ParameterValues& values, CanvasOptions& options) {
    options.tile = values.integer("tile");
    options.select = values.number("select");
    options.skip = values.number("skip");
    options.scaledByHeads = !options.shifted && values.text("scale") == "reference";
    if (options.tile % 16 != 0)
        throw Error(ErrorKind::BadInput, fmt::format("a tile of {} tokens is not a multiple of 16", options.tile),
                    "use tile=16, 32, 48 ... up to 256");
}

void takeCache(const ParameterValues& values, CanvasOptions& options) {
    const std::string cache = values.text("cache");
    options.cache = cache == "prefix" ? CanvasCache::Prefix
                    : cache == "dual" ? CanvasCache::Dual
                    : cache == "dllm" ? CanvasCache::Features
                                      : CanvasCache::None;
    options.promptInterval = values.integer("prompt_interval_steps");
    options.canvasInterval = values.integer("gen_interval_steps");
    options.updateRatio = values.number("transfer_ratio");
    options.sinceComputed = values.text("reference") == "last_recomputed";
}

void takeWrites(const ParameterValues& values, CanvasOptions& options) {
    const std::string parallel = values.text("parallel");
    options.writes = parallel == "threshold" ? CanvasWrites::Threshold
                     : parallel == "factor"  ? CanvasWrites::Factor
                                             : CanvasWrites::Quota;
    options.threshold = values.number("threshold");
    options.factor = values.number("factor");
}

} // namespace

std::vector<Parameter> canvasParameters(bool shifted) {
    if (shifted) {
        std::vector<Parameter> all = dreamParameters();
        all.push_back(blockLengthParameter(
            "0", 0, kMostCanvas,
            "cache=prefix and dual: tokens of the canvas that are written before those behind them, each block in its "
            "share of the steps. 0: all new tokens. Without these caches Dream has no blocks."));
        addWriteParameters(all, "by the noise that the steps leave");
        addCacheParameter(all);
        all.push_back(trimEndParameter());
        return all;
    }
    std::vector<Parameter> all{
        stepsParameter(),
        blockLengthParameter(
            "0", 0, kMostCanvas,
            "Tokens of the canvas that are written before those behind them; every forward still sees them all. "
            "0: all new tokens."),
        remaskingParameter()};
    addWriteParameters(all, "the tokens of a block divided by its share of the steps");
    addCacheParameter(all);
    all.push_back(trimEndParameter());
    return all;
}

std::vector<Parameter> evictingCanvasParameters(bool shifted) {
    std::vector<Parameter> all{
        stepsParameter(),
        blockLengthParameter("32", 1, kMostActive,
                             "Tokens of the canvas that are written before those behind them, and whose queries "
                             "choose.")};
    if (shifted) {
        all.push_back(algParameter(false));
        all.push_back(algTempParameter("Above 0, the positions are drawn from the softmax of what ranks them divided "
                                       "by this, without replacement. 0: the highest ones."));
    } else {
        all.push_back(remaskingParameter());
    }
    all.push_back(canvasNumber("ratio", "0.5", 0, 1,
                               "Share of the tokens outside the block that are kept, rounded down to whole tokens."));
    all.push_back({"kernel",
                   ParameterType::Integer,
                   "3",
                   1,
                   255,
                   "tokens",
                   "A token's importance is the highest among so many around it; odd. 1: its own.",
                   {}});
    all.push_back(trimEndParameter());
    return all;
}

std::vector<Parameter> tileCanvasParameters(bool shifted) {
    std::vector<Parameter> all;
    if (shifted)
        all = dreamParameters();
    else
        all = {stepsParameter(),
               blockLengthParameter(
                   "32", 0, kMostCanvas,
                   "Tokens of the canvas that are written before those behind them; every forward still sees them all. "
                   "0: all new tokens."),
               remaskingParameter()};
    addTileParameters(all, shifted);
    all.push_back(trimEndParameter());
    return all;
}

CanvasOptions canvasOptions(const ParameterValues& values, int newTokens) {
    CanvasOptions options;
    options.length = options.block = newTokens;
    options.steps = values.integer("steps") > 0 ? values.integer("steps") : newTokens;
    options.rank = rankOf(values);
    options.shifted = values.has("alg");
    options.trimEnd = values.text("trim_end") == "yes";
    if (values.has("eps")) options.eps = values.number("eps");
    if (options.shifted) options.rankHeat = values.number("alg_temp");
    if (values.has("block_length") && values.integer("block_length") > 0)
        options.block = values.integer("block_length");
    refuseUnevenShares("new tokens", newTokens, "tokens of a block", options.block,
                       "choose a block_length that divides --max-new-tokens");
    if (values.has("ratio")) takeEviction(values, options);
    if (values.has("select")) takeTiles(values, options);
    if (values.has("cache")) takeCache(values, options);
    if (values.has("parallel")) takeWrites(values, options);
    if (options.inBlocks() && options.writes == CanvasWrites::Quota)
        refuseUnevenShares("steps", options.steps, "blocks", options.blocks(),
                           "choose steps that are a multiple of the number of blocks");
    if (options.shifted && options.block != newTokens && !options.inBlocks())
        throw Error(ErrorKind::BadInput, "Dream's loop has no blocks without cache=prefix or cache=dual",
                    "leave block_length out, or choose one of these caches");
    if (options.writes != CanvasWrites::Quota && options.rank != CanvasRank::Confidence)
        throw Error(ErrorKind::BadInput,
                    options.shifted ? "parallel writing goes by confidence, and alg does not"
                                    : "parallel writing goes by confidence, and remasking is random",
                    options.shifted ? "use alg=maskgit_plus, or parallel=none"
                                    : "use remasking=low_confidence, or parallel=none");
    if (options.block > kMostCanvas)
        throw Error(
            ErrorKind::BadInput,
            fmt::format("{} tokens cannot be denoised together: a trace numbers {}", options.block, kMostCanvas),
            values.has("block_length") ? "use a block_length of 1024 or less" : "use --max-new-tokens 1024 or fewer");
    return options;
}

SelectionSpec canvasSpec(const ParameterValues& values) {
    SelectionSpec spec;
    spec.dense = true;
    spec.blockSize = spec.grid.blockSize = 64; // KV blocks, among which nothing is chosen
    spec.traceBudget = -1;
    if (!values.has("cache") || values.text("cache") != "dllm") return spec;
    spec.dense = false; // the cache chooses which tokens are computed
    spec.traceUnit = 1;
    return spec;
}

SelectionSpec evictingCanvasSpec(const ParameterValues& values) {
    SelectionSpec spec = canvasSpec(values);
    spec.dense = false;
    spec.traceUnit = 1;
    return spec;
}

SelectionSpec tileCanvasSpec(const ParameterValues& values) {
    SelectionSpec spec = canvasSpec(values);
    spec.dense = false;
    spec.blockSize = spec.grid.blockSize = values.integer("tile");
    return spec;
}

} // namespace select
} // namespace kvscope
