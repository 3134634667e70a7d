#include "core/model/model.h"

#include "core/model/bundled_models.h"
#include "core/model/generation_config.h"
#include "core/model/gguf_model.h"
#include "core/model/ids_only.h"
#include "core/model/model_source.h"
#include "core/model/safetensors.h"
#include "kernels/base/half.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace fs = std::filesystem;

/// Mapped files and their headers.
struct Model::Files {
    std::vector<std::unique_ptr<MappedFile>> mapped;
    std::vector<TensorTable> tensors;
};

namespace {

TextFiles textOf(const ModelSource& source, int vocab) {
    return hasTokenizer(source.folder) ? readTextFiles(source.folder) : idsOnlyText(source.folder, vocab);
}

/// Tensors of the model's files.
class Tensors final : public TensorSource {
public:
    Tensors(const std::vector<TensorTable>& files, std::string origin) : files_(files), origin_(std::move(origin)) {}
    const std::string& origin() const override { return origin_; }
    bool has(const std::string& name) const override { return find(name) != nullptr; }
    WeightMatrix matrix(const std::string& name, int rows, int cols) const override {
        const TensorView& view = need(name);
        const DType type = checked(name, view, {rows, cols});
        return {view.bytes.data(), type, rows, cols};
    }
    std::vector<float> vector(const std::string& name, std::initializer_list<std::int64_t> shape) const override {
        const TensorView& view = need(name);
        const DType type = checked(name, view, shape);
        if (isQuantised(type))
            throw Error(ErrorKind::Unsupported,
                        fmt::format("{}: tensor '{}' is quantised ({})", view.file, name, view.dtype),
                        "norms, biases and factors are F32, F16 or BF16");
        std::vector<float> out(view.bytes.size() / std::size_t(bytesOf(type)));
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = elementAt(view.bytes.data(), type, std::int64_t(i));
        return out;
    }

private:
    const TensorView* find(const std::string& name) const {
        for (const TensorTable& file : files_)
            if (const TensorView* view = file.find(name)) return view;
        return nullptr;
    }
    const TensorView& need(const std::string& name) const {
        if (const TensorView* view = find(name)) return *view;
        throw Error(ErrorKind::BadInput, fmt::format("{}: the tensor '{}' is missing", origin_, name),
                    "the weights do not belong to this config.json, or a shard is missing");
    }
    DType checked(const std::string& name, const TensorView& view, std::initializer_list<std::int64_t> shape) const {
        const auto type = weightType(view.dtype);
        if (!type)
            throw Error(ErrorKind::Unsupported, fmt::format("{}: tensor '{}' has type {}", view.file, name, view.dtype),
                        "use a checkpoint with BF16, F16 or F32 weights");
        if (!std::equal(view.shape.begin(), view.shape.end(), shape.begin(), shape.end()))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{}: tensor '{}' has shape [{}], config.json asks for [{}]", view.file, name,
                                    fmt::join(view.shape, ", "), fmt::join(shape, ", ")),
                        "the weights do not belong to this config.json");
        return *type;
    }
    const std::vector<TensorTable>& files_;
    const std::string origin_;
};

} // namespace

std::vector<std::string> embeddedModels() { return {kDefaultModel}; }

Model::Model(ModelConfig config, TextFiles text) : config_(std::move(config)), text_(std::move(text)) {}
Model::~Model() = default;

TextFiles Model::loadText(const std::string& nameOrPath) {
    const auto known = embeddedModels();
    if (std::find(known.begin(), known.end(), nameOrPath) != known.end()) return textOf(findModel(nameOrPath), 0);
    if (hasTokenizer(nameOrPath)) return readTextFiles(nameOrPath); // whatever else the folder holds
    const fs::path path = modelPath(nameOrPath);
    if (path.extension() == ".gguf") {
        const MappedFile file(ggufParts(path.string()).front());
        return ggufTextFiles(GgufFile(file.bytes(), path.string()));
    }
    std::error_code ignored;
    return readTextFiles(fs::is_directory(path, ignored) ? path : path.parent_path());
}

std::shared_ptr<const Model> Model::load(const std::string& nameOrPath, const Progress& progress, std::stop_token stop,
                                         const std::string& calibration) try {
    report(progress, 0.0, "reading the configuration");
    throwIfCancelled(stop);
    const ModelSource source = findModel(nameOrPath);
    auto files = std::make_unique<Files>();
    std::size_t fileBytes = 0;
    std::vector<GgufFile> parts;
    for (std::size_t i = 0; i < source.weightFiles.size(); ++i) {
        const double share = 1 / double(source.weightFiles.size());
        const auto within = [&](double fraction, std::string_view what) {
            report(progress, 0.3 * (double(i) + fraction) * share, what);
        };
        within(0, "mapping the weights");
        throwIfCancelled(stop);
        const auto bytes = files->mapped.emplace_back(std::make_unique<MappedFile>(source.weightFiles[i]))->bytes();
        fileBytes += bytes.size();
        if (source.gguf)
            parts.emplace_back(bytes, source.weightFiles[i], within, stop);
        else
            files->tensors.push_back(SafetensorsFile(bytes, source.weightFiles[i]));
    }
    if (source.gguf) files->tensors.push_back(ggufTensors(parts));
    // What `calibrate` learns about a bundled model lies in a folder of the person's own.
    const std::string learned = !calibration.empty() ? calibration : source.embedded ? "" : source.folder.string();
    const fs::path forecast = fs::path(learned) / kForecastFile;
    if (std::error_code ignored; !learned.empty() && fs::exists(forecast, ignored)) {
        const auto bytes = files->mapped.emplace_back(std::make_unique<MappedFile>(forecast.string()))->bytes();
        // What was asked for by name goes before what the checkpoint holds, what merely lies there after it.
        files->tensors.insert(calibration.empty() ? files->tensors.end() : files->tensors.begin(),
                              SafetensorsFile(bytes, forecast.string()));
    } else if (!calibration.empty() && !fs::is_directory(learned, ignored)) {
        throw Error(ErrorKind::BadInput, fmt::format("{} is no folder", learned),
                    "give the folder that kvscope-cli calibrate wrote to");
    }
    ModelConfig config = ModelConfig::parse(
        source.gguf ? ggufConfigJson(parts, files->tensors.front()) : source.configText, source.configOrigin);
    const fs::path generation = source.folder / "generation_config.json";
    if (std::error_code ignored; !source.folder.empty() && fs::exists(generation, ignored))
        addGenerationConfig(textOfFile(generation), generation.string(), config);
    report(progress, 0.3, "reading the tokenizer");
    throwIfCancelled(stop);
    const Tensors tensors(files->tensors, source.weightsOrigin);
    // Before anything is made for every token that the configuration claims.
    (void)tensors.matrix(architectureOf(config).names.embedding, config.vocab, config.hidden);
    std::shared_ptr<Model> model(
        new Model(config, source.gguf ? ggufTextFiles(parts.front()) : textOf(source, config.vocab)));
    model->name_ = source.name;
    model->folder_ = learned;
    model->embedded_ = source.embedded;
    model->files_ = std::move(files);
    model->fileBytes_ = fileBytes;
    model->readWeights(Tensors(model->files_->tensors, source.weightsOrigin), progress, stop);
    report(progress, 1.0, "ready");
    return model;
} catch (const std::bad_alloc&) {
    throw Error(ErrorKind::OutOfMemory, fmt::format("there is not enough memory to load {}", nameOrPath),
                "close other programs, or choose a smaller model");
}

void Model::readWeights(const TensorSource& tensors, const Progress& progress, const std::stop_token& stop) {
    const TensorNames& names = architectureOf(config_).names;
    if (config_.tiedUnlessHeadIsThere) config_.tiedEmbeddings = !tensors.has(names.head);
    embedding_ = tensors.matrix(names.embedding, config_.vocab, config_.hidden);
    lmHead_ = config_.tiedEmbeddings ? embedding_ : tensors.matrix(names.head, config_.vocab, config_.hidden);
    finalNorm_ = tensors.vector(names.finalNorm, {config_.hidden});
    for (float& weight : finalNorm_) weight *= float(config_.scales.logits);
    weightBytes_ = lmHead_.bytes();
    for (int layer = 0; layer < config_.layers; ++layer) {
        report(progress, 0.4 + 0.5 * layer / config_.layers, "checking the weights");
        throwIfCancelled(stop);
        layers_.push_back(readLayer(tensors, config_, layer, owned_));
        weightBytes_ += layers_.back().bytesPerToken(config_);
        if (layers_.back().gain.empty() != layers_.front().gain.empty())
            throw Error(ErrorKind::BadInput,
                        fmt::format("{}: the eviction head of layer {} is incomplete", tensors.origin(), layer),
                        "self_attn.A and self_attn.delta.weight belong together, in every layer");
    }
    if (!hasForecastHeads()) return;
    bool whole = layers_.front().ownForecast.rows > 0;
    for (int layer = 0; layer + 1 < config_.layers; ++layer) whole &= layers_[std::size_t(layer)].forecast.rows > 0;
    if (!whole)
        throw Error(ErrorKind::BadInput, fmt::format("{}: the Forecast heads are incomplete", tensors.origin()),
                    "every layer but the last needs q_future_proj.weight, and layer 0 q_curr_proj.weight");
}

} // namespace kvscope
