#include "core/cuda/diffusion/cuda_canvas_features.h"

#include "kernels/cuda/diffusion/canvas_rows.h"

#include <algorithm>

namespace kvscope {
namespace {

constexpr const char* kFeatureState = "session state";

} // namespace

// ---- Memory ---------------------------------------------------------------------------------------------------------

CudaCanvasFeatures::CudaCanvasFeatures(const Parts& parts, const PerRow<int>& prompts, const PerRow<int>& tokens)
    : p_(parts), config_(parts.model.config), prompts_(prompts.begin(), prompts.end()),
      tokens_(tokens.begin(), tokens.end()), width_((config_.queryHeads + 2 * config_.kvHeads) * config_.headDim),
      layers_(config_.layers), computed_(config_.layers, PerRow<ComputedTokens>(tokens.size())) {
    for (const RowId sequence : idsUpTo<RowId>(int(tokens_.size()))) {
        firstKept_.push_back(sizes_.allTokens);
        firstValue_.push_back(sizes_.allCanvas -
                              promptOf(sequence)); // the row that position 0 would have: rows begin with the canvas
        sizes_.allTokens += tokens_[index(sequence)];
        sizes_.allCanvas += canvasOf(sequence);
        sizes_.mostCanvas = std::max(sizes_.mostCanvas, canvasOf(sequence));
        sizes_.mostChanged = std::max(sizes_.mostChanged, changedOf(sequence));
    }
    if (p_.options.updateRatio > 0) cuda::checkChangedTokens(p_.launch, sizes_.mostCanvas);
}

void CudaCanvasFeatures::plan(DeviceArena& arena) {
    constexpr MemoryKind kFeatures("features", "what layers added to tokens", Holds::Kv);
    constexpr MemoryKind kRows("computed_rows", "streams of computed tokens", Holds::Scratch);
    const int hidden = config_.hidden;
    const std::size_t places = CanvasTokens::mostPlaces(tokens_), sequences = tokens_.size(), layers = layers_.size();
    for (Layer& layer : layers_) {
        arena.plan(layer.attention, {sizes_.allTokens, hidden}, kFeatures);
        arena.plan(layer.feedForward, {sizes_.allTokens, hidden}, kFeatures);
        if (p_.options.sinceComputed)
            arena.plan(layer.values, {sizes_.allCanvas, config_.kvHeads, config_.headDim}, kFeatures);
    }
    arena.plan(rows_, {places, hidden}, kRows);
    arena.plan(made_, {places, hidden}, kRows);
    chosen_.plan(arena, tokens_, config_.kvHeads);
    for (ForwardArray<std::int32_t>* list : {&sources_, &targets_, &everything_.sources, &everything_.targets})
        list->plan(arena, places);
    changeRows_.plan(arena, sequences);
    arena.plan(report_.changes, {layers, sequences, sizes_.mostCanvas}, "reports");
    arena.planHost(report_.changesHost, {layers, sequences, sizes_.mostCanvas}, "reports on the host");
    arena.plan(report_.positions, {layers, sequences, sizes_.mostChanged}, "reports");
    arena.planHost(report_.positionsHost, {layers, sequences, sizes_.mostChanged}, "reports on the host");
    if (!p_.options.sinceComputed) return;
    arena.plan(promptDevice_, sequences, kFeatureState);
    arena.plan(firstValueDevice_, sequences, kFeatureState);
}

void CudaCanvasFeatures::open(const std::int64_t* headFirst) {
    headFirst_ = headFirst;
    if (!p_.options.sinceComputed) return;
    const std::vector<std::int32_t> prompts(prompts_.begin(), prompts_.end());
    const std::size_t bytes = prompts.size() * sizeof(std::int32_t);
    cuda::check(cudaMemcpy(promptDevice_, prompts.data(), bytes, cudaMemcpyHostToDevice), "preparing the session");
    cuda::check(cudaMemcpy(firstValueDevice_, firstValue_.data(), bytes, cudaMemcpyHostToDevice),
                "preparing the session");
}

// ---- What a forward computes ----------------------------------------------------------------------------------------

/// How many tokens all layers but the first compute of the row.
int CudaCanvasFeatures::countOf(const CanvasRow& row) const {
    const int ofCanvas = row.wholeCanvas            ? canvasOf(row.sequence)
                         : chooses(LayerId{1}, row) ? changedOf(row.sequence)
                                                    : 0;
    return (row.wholePrompt ? promptOf(row.sequence) : 0) + ofCanvas;
}

void CudaCanvasFeatures::begin(std::span<const CanvasRow> rows) {
    int longest = 0;
    for (const CanvasRow& row : rows) longest = std::max(longest, countOf(row));
    chosen_.begin(CanvasTokens::tileOf(longest), config_.kvHeads);
    changing_ = places_ = everything_.places = 0;
    all_ = true;
}

/// Lists the row's tokens at the positions [from, end) in sources_ and targets_, from place places_ on.
void CudaCanvasFeatures::list(const CanvasRow& row, int firstPlace, int from, int end) {
    for (int position = from; position < end; ++position, ++places_) {
        sources_.host()[places_] = firstPlace + position;
        targets_.host()[places_] = firstKept_[index(row.sequence)] + position;
    }
}

/// Lists all places of the row in everything_.
void CudaCanvasFeatures::listAll(const CanvasRow& row, int firstPlace, int endPlace) {
    const int tokens = tokens_[row.sequence];
    for (int place = firstPlace; place < endPlace; ++place) {
        const int position = place - firstPlace;
        everything_.sources.host()[place] = position < tokens ? place : -1;
        everything_.targets.host()[place] = position < tokens ? firstKept_[index(row.sequence)] + position : -1;
    }
    everything_.places = endPlace;
}

void CudaCanvasFeatures::add(const CanvasRow& row, int firstPlace, int endPlace) {
    const int s = int(row.sequence), tokens = tokens_[row.sequence], prompt = promptOf(row.sequence),
              count = countOf(row);
    listAll(row, firstPlace, endPlace);
    // Where tokens are chosen by their changes, each layer sets their positions on the device.
    places_ = chosen_.add(s, row.wholePrompt ? 0 : prompt, count, tokens);
    const int end = places_ + count;
    if (row.wholePrompt) list(row, firstPlace, 0, prompt);
    if (row.wholeCanvas) list(row, firstPlace, prompt, tokens);
    if (chooses(LayerId{1}, row)) {
        const int changed = end - places_;
        changeRows_.host()[changing_++] = {s,
                                           prompt,
                                           tokens - prompt,
                                           firstPlace + prompt,
                                           firstValue_[index(row.sequence)] + prompt,
                                           firstKept_[index(row.sequence)],
                                           changed,
                                           places_};
        list(row, firstPlace, prompt, prompt + changed);
    }
    for (; places_ < chosen_.places(); ++places_) sources_.host()[places_] = targets_.host()[places_] = -1;
    all_ &= count == tokens;
}

void CudaCanvasFeatures::send() {
    everything_.sources.send(everything_.places, p_.launch.stream);
    everything_.targets.send(everything_.places, p_.launch.stream);
    if (chosen_.places() > 0) {
        chosen_.send(p_.launch.stream);
        sources_.send(chosen_.places(), p_.launch.stream);
        targets_.send(chosen_.places(), p_.launch.stream);
    }
    if (changing_ > 0) changeRows_.send(changing_, p_.launch.stream);
}

// ---- A layer --------------------------------------------------------------------------------------------------------

void CudaCanvasFeatures::runLayer(const Pass& pass) {
    const bool first = pass.layer == LayerId{0};
    if (!first && changing_ > 0) change(pass);
    const CanvasTokens& tokens = first ? pass.all : chosen_;
    compute(pass, tokens, first ? everything_.sources.device() : sources_.device(),
            first ? everything_.targets.device() : targets_.device());
}

cuda::ChangeArgs CudaCanvasFeatures::changeArgs(const Pass& pass) const {
    const int row = reportRow(pass.layer, RowId{0});
    cuda::ChangeArgs args;
    args.shape = p_.shape;
    args.rows = changing_;
    args.mostTokens = sizes_.mostCanvas;
    args.mostComputed = sizes_.mostChanged;
    args.table = changeRows_.device();
    args.qkv = p_.buffers.qkv;
    args.stride = width_;
    args.valueAt = width_ - config_.kvHeads * config_.headDim;
    args.blocks = pass.blocks;
    args.headFirst = headFirst_;
    args.compared = layers_[pass.layer].values;
    args.changes = RowsOf(report_.changes, sizes_.mostCanvas)[row];
    args.computed = RowsOf(report_.positions, sizes_.mostChanged)[row];
    args.places = chosen_.table();
    args.sources = sources_.device();
    args.targets = targets_.device();
    args.mark = pass.marks.changes;
    return args;
}

/// Makes the values of all tokens of the canvases that are compared and puts them in the place of the earlier ones. The
/// tokens whose values changed most are listed to be computed.
void CudaCanvasFeatures::change(const Pass& pass) {
    const DeviceLayer& weights = p_.model.layers[pass.layer];
    p_.ranges.at(pass.layer, Stage::QkvLinear);
    for (int i = 0; i < changing_; ++i) {
        const cuda::ChangeRow& row = changeRows_.host()[i];
        p_.passes.projectValues(weights, pass.x + std::ptrdiff_t(row.firstValue) * config_.hidden, row.tokens,
                                p_.buffers.qkv + std::ptrdiff_t(row.firstValue) * width_,
                                i == 0 ? pass.marks.values : nullptr);
    }
    p_.ranges.at(pass.layer, Stage::Compression);
    const cuda::ChangeArgs args = changeArgs(pass);
    cuda::compareValues(p_.launch, args);
    cuda::chooseChanged(p_.launch, args);
}

/// Computes `tokens`, keeps what the attention and the feed-forward add to each of them, and adds to all tokens of the
/// forward what the layer keeps for them. sources, targets: [places of `tokens`]
void CudaCanvasFeatures::compute(const Pass& pass, const CanvasTokens& tokens, const std::int32_t* sources,
                                 const std::int32_t* targets) {
    const Layer& of = layers_[pass.layer];
    const Marks& marks = pass.marks;
    const int n = tokens.places(), hidden = config_.hidden;
    const cuda::CanvasRowsArgs gather{n, hidden, pass.x, rows_, sources};
    const auto addKept = [&](const float* kept) {
        cuda::addRows(p_.launch, {pass.all.places(), hidden, kept, pass.x, everything_.targets.device()});
    };
    if (n == 0) {
        for (std::uint64_t* mark : {marks.qkv, marks.rope, marks.attention, marks.output})
            cuda::stampNow(p_.launch, mark);
        addKept(of.attention);
        cuda::stampNow(p_.launch, marks.feedForward);
        addKept(of.feedForward);
        return;
    }
    p_.ranges.at(pass.layer, Stage::QkvLinear);
    cuda::gatherRows(p_.launch, gather);
    p_.passes.project(p_.model.layers[pass.layer], rows_, n, marks.qkv);
    pass.place(tokens);
    if (of.values != nullptr)
        cuda::keepValues(p_.launch,
                         {tokens.tokens(p_.shape, headFirst_), p_.buffers.qkv, width_,
                          width_ - config_.kvHeads * config_.headDim, firstValueDevice_, promptDevice_, of.values});
    pass.attend(tokens);
    p_.passes.outputOf(pass.layer, made_, n, false, marks.output);
    cuda::scatterRows(p_.launch, {n, hidden, made_, of.attention, targets});
    addKept(of.attention);
    cuda::gatherRows(p_.launch, gather);
    p_.passes.feedForwardOf(pass.layer, rows_, made_, n, false, marks.feedForward);
    cuda::scatterRows(p_.launch, {n, hidden, made_, of.feedForward, targets});
    addKept(of.feedForward);
}

// ---- What came of it ------------------------------------------------------------------------------------------------

void CudaCanvasFeatures::collect() {
    if (changing_ == 0) return;
    const Elements rows(layers_.size(), tokens_.size());
    const auto copy = [&](auto* to, const auto* from, Elements count) {
        if (count > 0)
            copyOnStream(to, from, count, cudaMemcpyDeviceToHost, p_.launch.stream,
                         "reading which tokens were computed");
    };
    copy(report_.changesHost, report_.changes, {rows, sizes_.mostCanvas});
    copy(report_.positionsHost, report_.positions, {rows, sizes_.mostChanged});
}

void CudaCanvasFeatures::finish(std::span<const CanvasRow> rows) {
    for (const LayerId layer : layers_.ids())
        for (const CanvasRow& row : rows) {
            const int prompt = promptOf(row.sequence), tokens = tokens_[row.sequence];
            ComputedTokens& computed = computed_[layer][row.sequence];
            computed.begin();
            if (layer == LayerId{0} || row.wholePrompt) computed.add(0, prompt);
            if (layer == LayerId{0} || row.wholeCanvas) computed.add(prompt, tokens);
            if (chooses(layer, row)) {
                const std::int32_t* const from =
                    RowsOf(report_.positionsHost, sizes_.mostChanged)[reportRow(layer, row.sequence)];
                computed.positions.insert(computed.positions.end(), from, from + changedOf(row.sequence));
            }
            computed.compare(row.block, tokens);
        }
}

NumberedSpan<const float> CudaCanvasFeatures::changes(LayerId layer, const CanvasRow& row) const {
    if (!chooses(layer, row)) return {};
    return {RowsOf(report_.changesHost, sizes_.mostCanvas)[reportRow(layer, row.sequence)], canvasOf(row.sequence)};
}

} // namespace kvscope
