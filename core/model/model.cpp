#include "core/model/model.h"

#include "core/model/gguf_model.h"
#include "core/model/safetensors.h"
#include "kernels/base/half.h"
#include "resources/resources.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace fs = std::filesystem;

/// Mapped files and their headers; the embedded model has headers only.
struct Model::Files {
    std::vector<std::unique_ptr<MappedFile>> mapped;
    std::vector<TensorTable> tensors;
};

namespace {

std::string embeddedPath(const std::string& name, const char* file) { return "models/" + name + "/" + file; }

std::string textOf(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// Where a model's parts come from, resolved before anything is parsed.
struct Source {
    std::string name, configText, tokenizerText;
    std::string configOrigin, tokenizerOrigin, weightsOrigin;
    fs::path folder;
    std::vector<std::string> weightFiles; // paths; empty: embedded
    bool gguf = false;                    // the weight files hold configuration and tokenizer too
};

Source embeddedSource(const std::string& name) {
    Source source;
    source.name = name;
    source.configOrigin = name + "/config.json";
    source.tokenizerOrigin = name + "/tokenizer.json";
    source.weightsOrigin = name + "/model.safetensors";
    source.configText = resources::text(embeddedPath(name, "config.json")).value_or("");
    source.tokenizerText = resources::text(embeddedPath(name, "tokenizer.json")).value_or("");
    return source;
}

Source folderSource(const std::string& nameOrPath) {
    std::error_code ignored;
    fs::path path(nameOrPath);
    if (!fs::exists(path, ignored))
        throw Error(ErrorKind::BadInput, fmt::format("there is no model '{}'", nameOrPath),
                    fmt::format("give a Hugging Face folder, a .safetensors or .gguf file, or an embedded model: {}",
                                fmt::join(embeddedModels(), ", ")));
    Source source;
    if (fs::is_directory(path, ignored)) {
        source.folder = path;
    } else if (path.extension() == ".safetensors") {
        source.folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
        source.weightFiles.push_back(path.string());
    } else if (path.extension() == ".gguf") {
        source.name = path.stem().string();
        source.configOrigin = source.tokenizerOrigin = source.weightsOrigin = nameOrPath;
        source.weightFiles = ggufParts(nameOrPath);
        source.gguf = true;
        return source;
    } else {
        throw Error(ErrorKind::BadInput, fmt::format("{} is no folder and no .safetensors or .gguf file", nameOrPath),
                    "give the folder that holds config.json, or a model file");
    }
    source.name = fs::absolute(source.folder, ignored).lexically_normal().filename().string();
    if (source.name.empty())
        source.name = fs::absolute(source.folder, ignored).lexically_normal().parent_path().filename().string();
    const auto need = [&](const char* file) {
        const fs::path full = source.folder / file;
        if (!fs::exists(full, ignored))
            throw Error(ErrorKind::BadInput, fmt::format("{} has no {}", source.folder.string(), file),
                        "download the checkpoint again, with all its files");
        return full.string();
    };
    source.configOrigin = need("config.json");
    source.configText = textOf(MappedFile(source.configOrigin));
    source.tokenizerOrigin = need("tokenizer.json");
    source.tokenizerText = textOf(MappedFile(source.tokenizerOrigin));
    if (!source.weightFiles.empty()) {
        source.weightsOrigin = source.weightFiles.front();
        return source;
    }
    const fs::path index = source.folder / "model.safetensors.index.json";
    if (fs::exists(index, ignored)) {
        source.weightsOrigin = index.string();
        for (const std::string& shard : shardNames(textOf(MappedFile(index.string())), index.string()))
            source.weightFiles.push_back((source.folder / shard).string());
    } else {
        source.weightsOrigin = need("model.safetensors");
        source.weightFiles.push_back(source.weightsOrigin);
    }
    return source;
}

/// Finds tensors by name and checks their shapes.
class Tensors {
public:
    Tensors(const std::vector<TensorTable>& files, std::string origin) : files_(files), origin_(std::move(origin)) {}
    const std::string& origin() const { return origin_; }

    const TensorView* find(const std::string& name) const {
        for (const TensorTable& file : files_)
            if (const TensorView* view = file.find(name)) return view;
        return nullptr;
    }
    WeightMatrix matrix(const std::string& name, int rows, int cols) const {
        const TensorView& view = need(name);
        const DType type = checked(name, view, {rows, cols});
        return {view.bytes.data(), type, rows, cols};
    }
    std::vector<float> vector(const std::string& name, std::initializer_list<std::int64_t> shape) const {
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
    std::vector<float> vectorIfPresent(const std::string& name, std::initializer_list<std::int64_t> shape) const {
        return find(name) ? vector(name, shape) : std::vector<float>();
    }

private:
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

LayerWeights loadLayer(const Tensors& tensors, const ModelConfig& c, int index) {
    const std::string layer = fmt::format("model.layers.{}.", index), attention = layer + "self_attn.",
                      mlp = layer + "mlp.";
    const int qWidth = c.queryHeads * c.headDim, kvWidth = c.kvHeads * c.headDim;
    LayerWeights w;
    w.inputNorm = tensors.vector(layer + "input_layernorm.weight", {c.hidden});
    w.postNorm = tensors.vector(layer + "post_attention_layernorm.weight", {c.hidden});
    w.q = tensors.matrix(attention + "q_proj.weight", qWidth, c.hidden);
    w.k = tensors.matrix(attention + "k_proj.weight", kvWidth, c.hidden);
    w.v = tensors.matrix(attention + "v_proj.weight", kvWidth, c.hidden);
    w.o = tensors.matrix(attention + "o_proj.weight", c.hidden, qWidth);
    w.qBias = tensors.vectorIfPresent(attention + "q_proj.bias", {qWidth});
    w.kBias = tensors.vectorIfPresent(attention + "k_proj.bias", {kvWidth});
    w.vBias = tensors.vectorIfPresent(attention + "v_proj.bias", {kvWidth});
    w.oBias = tensors.vectorIfPresent(attention + "o_proj.bias", {c.hidden});
    w.gate = tensors.matrix(mlp + "gate_proj.weight", c.ffn, c.hidden);
    w.up = tensors.matrix(mlp + "up_proj.weight", c.ffn, c.hidden);
    w.down = tensors.matrix(mlp + "down_proj.weight", c.hidden, c.ffn);
    for (const char* name : {"gate_proj.bias", "up_proj.bias", "down_proj.bias"})
        if (tensors.find(mlp + name))
            throw Error(ErrorKind::Unsupported,
                        fmt::format("{}: feed-forward biases ('{}') are not supported", tensors.origin(), mlp + name),
                        "use a checkpoint without mlp_bias");
    w.delta = tensors.vectorIfPresent(attention + "delta.weight", {c.kvHeads, kvWidth});
    w.gain = tensors.vectorIfPresent(attention + "A", {c.kvHeads});
    return w;
}

} // namespace

std::vector<std::string> embeddedModels() { return {kDefaultModel}; }

Model::Model(ModelConfig config, Tokenizer tokenizer) : config_(std::move(config)), tokenizer_(std::move(tokenizer)) {}
Model::~Model() = default;

std::shared_ptr<const Model> Model::load(const std::string& nameOrPath, const Progress& progress,
                                         std::stop_token stop) try {
    report(progress, 0.0, "reading the configuration");
    throwIfCancelled(stop);
    const auto known = embeddedModels();
    const bool embedded = std::find(known.begin(), known.end(), nameOrPath) != known.end();
    const Source source = embedded ? embeddedSource(nameOrPath) : folderSource(nameOrPath);
    auto files = std::make_unique<Files>();
    std::size_t fileBytes = 0;
    if (embedded) {
        const auto bytes = resources::find(embeddedPath(nameOrPath, "model.safetensors")).value();
        files->tensors.push_back(SafetensorsFile(bytes, source.weightsOrigin));
        fileBytes = bytes.size();
    }
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
    const ModelConfig config = ModelConfig::parse(
        source.gguf ? ggufConfigJson(parts.front(), files->tensors.front()) : source.configText, source.configOrigin);
    report(progress, 0.3, "reading the tokenizer");
    throwIfCancelled(stop);
    std::shared_ptr<Model> model(new Model(
        config, source.gguf ? ggufTokenizer(parts.front()) : Tokenizer(source.tokenizerText, source.tokenizerOrigin)));
    model->name_ = source.name;
    model->files_ = std::move(files);
    model->fileBytes_ = fileBytes;
    const Tensors tensors(model->files_->tensors, source.weightsOrigin);
    model->embedding_ = tensors.matrix("model.embed_tokens.weight", config.vocab, config.hidden);
    model->lmHead_ =
        config.tiedEmbeddings ? model->embedding_ : tensors.matrix("lm_head.weight", config.vocab, config.hidden);
    model->finalNorm_ = tensors.vector("model.norm.weight", {config.hidden});
    model->weightBytes_ = model->lmHead_.bytes();
    for (int layer = 0; layer < config.layers; ++layer) {
        report(progress, 0.4 + 0.5 * layer / config.layers, "checking the weights");
        throwIfCancelled(stop);
        const LayerWeights& w = model->layers_.emplace_back(loadLayer(tensors, config, layer));
        for (const WeightMatrix* matrix : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down})
            model->weightBytes_ += matrix->bytes();
        if (w.delta.empty() != w.gain.empty() || w.gain.empty() != model->layers_.front().gain.empty())
            throw Error(ErrorKind::BadInput,
                        fmt::format("{}: the eviction head of layer {} is incomplete", source.weightsOrigin, layer),
                        "self_attn.A and self_attn.delta.weight belong together, in every layer");
    }
    report(progress, 0.9, "preparing rotary positions");
    const int half = config.headDim / 2;
    model->ropeCos_.resize(std::size_t(config.maxPositions) * std::size_t(half));
    model->ropeSin_.resize(model->ropeCos_.size());
    for (int i = 0; i < half; ++i) {
        throwIfCancelled(stop);
        const double frequency = std::pow(config.ropeTheta, -2.0 * i / config.headDim);
        for (int position = 0; position < config.maxPositions; ++position) {
            const std::size_t at = std::size_t(position) * std::size_t(half) + std::size_t(i);
            model->ropeCos_[at] = float(std::cos(position * frequency));
            model->ropeSin_[at] = float(std::sin(position * frequency));
        }
    }
    report(progress, 1.0, "ready");
    return model;
} catch (const std::bad_alloc&) {
    throw Error(ErrorKind::OutOfMemory, fmt::format("there is not enough memory to load {}", nameOrPath),
                "close other programs, or choose a smaller model");
}

} // namespace kvscope
