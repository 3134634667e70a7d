#include "core/model/model.h"

#include "base/json_reading.h"
#include "base/utf8.h"
#include "core/model/bundled_models.h"
#include "core/model/fingerprint.h"
#include "core/model/generation_config.h"
#include "core/model/gguf_model.h"
#include "core/model/ids_only.h"
#include "core/model/model_source.h"
#include "core/model/safetensors.h"
#include "core/model/tokenizer_notes.h"
#include "kernels/half.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace kvscope {
namespace fs = std::filesystem;

/// Mapped files and their headers.
struct Model::Files {
    /// Maps the weight files and reads their headers. @return those of GGUF files; empty for safetensors
    std::vector<GgufFile> mapWeights(const ModelSource& source, const Progress& progress, const std::stop_token& stop);
    /// Adds what `calibrate` wrote to the folder, if there is anything. asked: the calibration was asked for by name.
    void addCalibration(const std::string& folder, bool asked);
    std::span<const TensorTable> weightTables() const { return std::span(tensors).subspan(firstWeights, tables); }

    std::vector<std::unique_ptr<MappedFile>> mapped;
    std::vector<TensorTable> tensors;                // in the order in which a tensor is looked for
    std::vector<std::span<const std::byte>> weights; // whole files, without the calibration beside them
    std::size_t weightBytes = 0;
    std::size_t firstWeights = 0, tables = 0; // of `tensors`: where those of the weight files begin; how many these are
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
        used_.insert(name);
        return {view.bytes.data(), type, rows, cols};
    }
    WeightMatrix stack(const std::string& name, int count, int rows, int cols) const override {
        const TensorView& view = need(name);
        const DType type = checked(name, view, {count, rows, cols});
        used_.insert(name);
        return {view.bytes.data(), type, count * rows, cols};
    }
    std::vector<float> vector(const std::string& name, std::initializer_list<std::int64_t> shape) const override {
        const TensorView& view = need(name);
        const DType type = checked(name, view, shape);
        used_.insert(name);
        if (isQuantised(type))
            throw Error(ErrorKind::Unsupported,
                        fmt::format("{}: tensor '{}' is quantised ({})", view.file, name, view.dtype),
                        "norms, biases and factors are F32, F16 or BF16");
        std::vector<float> out(view.bytes.size() / std::size_t(bytesOf(type)));
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = elementAt(view.bytes.data(), type, std::int64_t(i));
        return out;
    }

    /// Names that are in `file` and that nobody asked for, of tensors that have elements.
    std::vector<std::string> unused(const TensorTable& file) const {
        std::vector<std::string> names;
        for (const auto& [name, view] : file.tensors())
            if (!used_.contains(name) && !view.bytes.empty()) names.push_back(name);
        return names;
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
    mutable std::set<std::string, std::less<>> used_;
};

/// The number behind `prefix`; -1 where the name does not begin so.
int layerBehind(std::string_view prefix, std::string_view name) {
    int layer = 0;
    if (!name.starts_with(prefix)) return -1;
    const char* const begin = name.data() + prefix.size();
    const auto [end, code] = std::from_chars(begin, name.data() + name.size(), layer);
    return code == std::errc() && end != begin && layer >= 0 ? layer : -1;
}

/// The layer that a tensor belongs to, by its name in the files of any family; -1: to none.
int layerOf(std::string_view name) {
    for (const Architecture& each : architectures())
        if (const int layer = layerBehind(each.names.layers, name); layer >= 0) return layer;
    return layerBehind("blk.", name); // GGUF
}

/// Whether a tensor is of the same module as another one: "lm_head.bias" as "lm_head.weight".
bool isOfModule(std::string_view name, std::string_view weight) {
    return name.starts_with(weight.substr(0, weight.rfind('.') + 1));
}

/// Refuses unused tensors of the layers that run, and biases and the like of the head and the last norm: the program
/// that wrote the file would have computed something else with them. The head's own matrix may stay unused (readHead).
/// unused: names that nobody asked for; layers: how many run. @return notes on the tensors that are left out, as the
/// transformers library leaves them out: tables of rotations, which are computed here, tensors of layers behind the
/// last one, and tensors of no layer. @throws Error(Unsupported) naming the tensor
std::vector<std::string> accountFor(const std::vector<std::string>& unused, const TensorNames& names, int layers,
                                    const std::string& origin) {
    std::size_t tables = 0, behind = 0;
    std::vector<std::string> notes, elsewhere;
    for (const std::string& name : unused) {
        const int layer = layerOf(name);
        const bool ends = name != names.head && (isOfModule(name, names.head) || isOfModule(name, names.finalNorm));
        if (name.find(".rotary_emb.") != name.npos || name.find(".attn_rot_embd") != name.npos) {
            ++tables;
        } else if (layer >= layers) {
            ++behind;
        } else if (layer >= 0 || ends) {
            const bool bias = name.ends_with(".bias");
            throw Error(
                ErrorKind::Unsupported,
                fmt::format("{}: nothing uses the tensor '{}'", origin, shown(toValidUtf8(name))),
                bias ? "config.json says that there is no such bias: state it (attention_bias, mlp_bias, qkv_bias) "
                       "where the architecture has it, or remove the tensor"
                     : "config.json describes another model than these weights: check its architecture");
        } else if (name != names.head) {
            elsewhere.push_back(name);
        }
    }
    /// one, several: what the tensors are or do, behind "1 tensor" and "2 tensors".
    const auto note = [&](std::size_t count, const char* one, const char* several, const std::string& more) {
        if (count == 1)
            notes.push_back(fmt::format("1 tensor {}{} is left out", one, more));
        else if (count > 1)
            notes.push_back(fmt::format("{} tensors {}{} are left out", count, several, more));
    };
    note(tables, "with a rotary table, which is computed,", "with rotary tables, which are computed,", "");
    note(behind, "of layers behind the last one", "of layers behind the last one", "");
    if (!elsewhere.empty())
        note(elsewhere.size(), "of no layer", "of no layer",
             fmt::format(" ({}{})", shown(toValidUtf8(elsewhere.front())), elsewhere.size() > 1 ? ", ..." : ""));
    return notes;
}

/// Refuses two files that have a tensor of the same name: either could be meant. @throws Error(BadInput)
void refuseDuplicates(const std::vector<TensorTable>& files) {
    for (std::size_t i = 1; i < files.size(); ++i)
        for (const auto& [name, view] : files[i].tensors())
            for (std::size_t before = 0; before < i; ++before)
                if (const TensorView* other = files[before].find(name))
                    throw Error(ErrorKind::BadInput,
                                fmt::format("{}: the tensor '{}' is in {} too", view.file, shown(name), other->file),
                                "the shards do not belong together: download them again");
}

} // namespace

std::vector<std::string> embeddedModels() {
    std::vector<std::string> names{kDefaultModel};
    if (hasBundledModel(kDiffusionModel)) names.emplace_back(kDiffusionModel); // a checkout may leave it out
    return names;
}

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

std::vector<GgufFile> Model::Files::mapWeights(const ModelSource& source, const Progress& progress,
                                               const std::stop_token& stop) {
    std::vector<GgufFile> parts;
    for (std::size_t i = 0; i < source.weightFiles.size(); ++i) {
        const double share = 1 / double(source.weightFiles.size());
        const auto within = [&](double fraction, std::string_view what) {
            report(progress, 0.3 * (double(i) + fraction) * share, what);
        };
        within(0, "mapping the weights");
        throwIfCancelled(stop);
        const auto bytes = mapped.emplace_back(std::make_unique<MappedFile>(source.weightFiles[i]))->bytes();
        weightBytes += bytes.size();
        weights.push_back(bytes);
        if (source.gguf)
            parts.emplace_back(bytes, source.weightFiles[i], within, stop);
        else
            tensors.push_back(SafetensorsFile(bytes, source.weightFiles[i]));
    }
    if (source.gguf) tensors.push_back(ggufTensors(parts));
    refuseDuplicates(tensors);
    tables = tensors.size();
    return parts;
}

void Model::Files::addCalibration(const std::string& folder, bool asked) {
    const fs::path forecast = fs::path(folder) / kForecastFile;
    if (std::error_code ignored; !folder.empty() && fs::exists(forecast, ignored)) {
        const auto bytes = mapped.emplace_back(std::make_unique<MappedFile>(forecast.string()))->bytes();
        // A calibration that was asked for by name goes before the checkpoint's own tensors; one that merely lies
        // beside them goes after.
        tensors.insert(asked ? tensors.begin() : tensors.end(), SafetensorsFile(bytes, forecast.string()));
        firstWeights = asked ? 1 : 0;
    } else if (asked && !fs::is_directory(folder, ignored)) {
        throw Error(ErrorKind::BadInput, fmt::format("{} is not a folder", folder),
                    "give the folder that kvscope-cli calibrate wrote to");
    }
}

namespace {

/// What the model's files say of its configuration, with notes on what is not used. parts: of a GGUF model; weights:
/// the first table of its tensors.
ModelConfig configOf(const ModelSource& source, const std::vector<GgufFile>& parts, const TensorTable& weights) {
    std::vector<std::string> unreadMetadata;
    ModelConfig config =
        ModelConfig::parse(source.gguf ? ggufConfigJson(parts, weights, &unreadMetadata) : source.configText,
                           source.configOrigin, source.gguf ? ConfigSource::Gguf : ConfigSource::Checkpoint);
    if (!unreadMetadata.empty())
        config.notes.push_back(
            fmt::format("nothing here reads these keys of the file's metadata: {}", listedKeys(unreadMetadata)));
    for (const GgufFile& part : parts)
        if (part.bytesBehind() > 0)
            config.notes.push_back(
                fmt::format("{} bytes of {} behind its last tensor belong to none: it may be damaged",
                            part.bytesBehind(), fs::path(part.origin()).filename().string()));
    if (source.indexLeftOut)
        config.notes.emplace_back("the weights are those of model.safetensors, as in transformers; "
                                  "model.safetensors.index.json and its shards are left out");
    if (source.adapterLeftOut)
        config.notes.emplace_back(
            "an adapter lies beside the weights (adapter_config.json), which transformers adds to "
            "those of the folder; it is left out");
    const fs::path generation = source.folder / "generation_config.json";
    if (std::error_code ignored; !source.folder.empty() && fs::exists(generation, ignored))
        addGenerationConfig(textOfFile(generation), generation.string(), config);
    return config;
}

/// The path under which the model is found again: absolute where there is such a path, else as it was given.
std::string pathOf(const ModelSource& source, const std::string& nameOrPath) {
    if (source.embedded) return source.name;
    std::error_code failure;
    std::string path = fs::absolute(modelPath(nameOrPath), failure).lexically_normal().string();
    return failure ? nameOrPath : path;
}

} // namespace

std::shared_ptr<const Model> Model::load(const std::string& nameOrPath, const Progress& progress, std::stop_token stop,
                                         const std::string& calibration) try {
    report(progress, 0.0, "reading the configuration");
    throwIfCancelled(stop);
    const ModelSource source = findModel(nameOrPath);
    auto files = std::make_unique<Files>();
    const std::vector<GgufFile> parts = files->mapWeights(source, progress, stop);
    // What `calibrate` learns about a bundled model is kept in a folder of the user.
    const std::string learned = !calibration.empty() ? calibration : source.embedded ? "" : source.folder.string();
    files->addCalibration(learned, !calibration.empty());
    const ModelConfig config = configOf(source, parts, files->tensors[files->firstWeights]);
    report(progress, 0.3, "reading the tokenizer");
    throwIfCancelled(stop);
    // Before anything is made for every token that the configuration claims.
    (void)Tensors(files->tensors, source.weightsOrigin)
        .matrix(architectureOf(config).names.embedding, config.vocab, config.hidden);
    std::shared_ptr<Model> model(
        new Model(config, source.gguf ? ggufTextFiles(parts.front()) : textOf(source, config.vocab)));
    model->name_ = source.name;
    model->folder_ = learned;
    model->embedded_ = source.embedded;
    model->path_ = pathOf(source, nameOrPath);
    model->files_ = std::move(files);
    model->fileBytes_ = model->files_->weightBytes;
    const Tensors tensors(model->files_->tensors, source.weightsOrigin);
    model->readWeights(tensors, progress, stop);
    std::vector<std::string> unused;
    for (const TensorTable& table : model->files_->weightTables())
        for (std::string& name : tensors.unused(table))
            // The converter's factors of RoPE are part of the configuration.
            if (!source.gguf || !name.starts_with("rope_f")) unused.push_back(std::move(name));
    for (std::string& note : accountFor(unused, architectureOf(config).names, config.layers, source.weightsOrigin))
        model->config_.notes.push_back(std::move(note));
    if (!source.gguf)
        for (std::string& note : tokenizerNotes(source.folder, model->tokenizer()))
            model->config_.notes.push_back(std::move(note));
    report(progress, 1.0, "ready");
    return model;
} catch (const std::bad_alloc&) {
    throw Error(ErrorKind::OutOfMemory, fmt::format("there is not enough memory to load {}", nameOrPath),
                "close other programs, or choose a smaller model");
}

std::string Model::fingerprint() const { return fingerprintOf(files_->weights); }

/// Sets lmHead_. Where the configuration ties the head to the embedding, but the file has a head of its own that
/// differs, the file's head is used, as the transformers library does.
void Model::readHead(const TensorSource& tensors) {
    const std::string& name = architectureOf(config_).names.head;
    const bool there = tensors.has(name);
    if (config_.tiedUnlessHeadIsThere) config_.tiedEmbeddings = !there;
    lmHead_ = embedding_;
    if (config_.tiedEmbeddings && !there) return;
    lmHead_ = tensors.matrix(name, config_.vocab, config_.hidden);
    if (!config_.tiedEmbeddings) return;
    const bool same =
        lmHead_.type == embedding_.type && std::memcmp(lmHead_.data, embedding_.data, lmHead_.bytes()) == 0;
    if (same)
        lmHead_ = embedding_;
    else
        config_.tiedEmbeddings = false;
    config_.notes.push_back(
        same
            ? fmt::format("the tensor '{}' is left out: it is the embedding, to which config.json ties it", name)
            : fmt::format("config.json ties the output head to the embedding, and the tensor '{}' differs from it: the "
                          "tensor is used, as transformers does",
                          name));
}

void Model::readWeights(const TensorSource& tensors, const Progress& progress, const std::stop_token& stop) {
    const TensorNames& names = architectureOf(config_).names;
    embedding_ = tensors.matrix(names.embedding, config_.vocab, config_.hidden);
    readHead(tensors);
    finalNorm_ = tensors.vector(names.finalNorm, {config_.hidden});
    if (config_.normsAddOne)
        for (float& weight : finalNorm_) weight += 1;
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
    for (int layer = 0; layer + 1 < config_.layers; ++layer) whole &= layers_[layer].forecast.rows > 0;
    if (!whole)
        throw Error(ErrorKind::BadInput, fmt::format("{}: the Forecast heads are incomplete", tensors.origin()),
                    "every layer but the last needs q_future_proj.weight, and layer 0 q_curr_proj.weight");
}

} // namespace kvscope
