// A loaded model: configuration, tokenizer, weights as views into mapped files.
#pragma once

#include "base/indexed.h"
#include "base/progress.h"
#include "core/model/layer_weights.h"
#include "core/model/model_config.h"
#include "core/model/text_files.h"
#include "kernels/kernels.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace kvscope {

/// The names of the models that come with the program. Model::load takes them in place of a path.
std::vector<std::string> embeddedModels();
inline constexpr const char* kDefaultModel = "nosa-tiny";
inline constexpr const char* kDiffusionModel = "losa-tiny"; // decodes by block diffusion
/// Forecast projections that `calibrate` trained, under a checkpoint's own tensor names.
inline constexpr const char* kForecastFile = "forecast.safetensors";

/// Immutable after load; shared between sessions.
class Model {
public:
    /// Loads an embedded name, a Hugging Face folder, a .safetensors file with its config.json beside it, or a .gguf
    /// file (the first of a split one). Weights stay memory-mapped. `calibration`: a folder that `calibrate` wrote;
    /// empty: the model's own folder.
    /// @throws Error naming the file, the tensor and what would help; Error(Cancelled)
    static std::shared_ptr<const Model> load(const std::string& nameOrPath, const Progress& progress = {},
                                             std::stop_token stop = {}, const std::string& calibration = {});
    /// Tokenizer and chat template alone, without reading weights.
    static TextFiles loadText(const std::string& nameOrPath);
    ~Model();
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    const std::string& name() const { return name_; }     // last part of the path, or the embedded name
    const std::string& folder() const { return folder_; } // of the files; empty: a model that comes with the program
    /// What load() takes to load the model again: an absolute path of its folder or file, or the name of a model that
    /// comes with the program.
    const std::string& path() const { return path_; }
    /// The fingerprint of the model's weight files (model/fingerprint.h); calibration does not count.
    std::string fingerprint() const;
    bool embedded() const { return embedded_; } // comes with the program
    /// One sentence for each thing that the files hold or state and that this program does not use.
    const std::vector<std::string>& notes() const { return config_.notes; }
    const ModelConfig& config() const { return config_; }
    const Tokenizer& tokenizer() const { return text_.tokenizer; }
    /// nullptr: a base model, or its template cannot be used, which chatProblem() then says.
    const ChatTemplate* chatTemplate() const { return text_.chat.get(); }
    const std::string& chatProblem() const { return text_.chatProblem; }
    const TextFiles& text() const { return text_; }
    bool hasForecastHeads() const { return !layers_.empty() && layers_.front().forecast.rows > 0; }
    bool hasEvictionHead() const { return !layers_.empty() && !layers_.front().gain.empty(); }
    const LayerWeights& layer(int index) const { return layers_[index]; }
    const WeightMatrix& embedding() const { return embedding_; }       // [vocab, hidden]
    const WeightMatrix& lmHead() const { return lmHead_; }             // [vocab, hidden]; the embedding when tied
    const std::vector<float>& finalNorm() const { return finalNorm_; } // times the logits' muP scale
    std::size_t weightBytes() const {
        return weightBytes_;
    } // read by one decode step of one token, embedding row aside
    std::size_t fileBytes() const { return fileBytes_; }
    DType weightType() const { return layers_.front().q.type; }

private:
    struct Files; // mapped files the views point into
    Model(ModelConfig config, TextFiles text);
    void readWeights(const TensorSource& tensors, const Progress& progress, const std::stop_token& stop);
    void readHead(const TensorSource& tensors);
    std::string name_, folder_, path_;
    ModelConfig config_;
    TextFiles text_;
    std::unique_ptr<Files> files_;
    Numbered<LayerWeights> layers_;
    WeightMatrix embedding_, lmHead_;
    std::vector<float> finalNorm_;
    std::deque<std::vector<std::byte>> owned_; // weights that had to be rearranged
    std::size_t weightBytes_ = 0, fileBytes_ = 0;
    bool embedded_ = false;
};

} // namespace kvscope
