// Which files are meant when a person names a model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvscope {

/// Where a model's parts come from, resolved before anything is parsed.
struct ModelSource {
    std::string name, configText;
    std::string configOrigin, weightsOrigin;
    std::filesystem::path folder;         // empty: a GGUF file
    std::vector<std::string> weightFiles; // paths
    bool embedded = false;                // comes with the program
    bool gguf = false;                    // the weight files hold configuration and tokenizer too
    bool adapterLeftOut = false;          // an adapter lies beside the one file that was asked for
    bool indexLeftOut = false;            // shards lie beside the one file that has everything
};

/// An embedded name, or a path as modelPath() takes it. @throws Error naming what is missing
ModelSource findModel(const std::string& nameOrPath);

/// The folder with config.json, .safetensors or .gguf file that is meant. "~/" is the home folder. A folder without a
/// checkpoint may be one of the Hugging Face hub's cache (models--OWNER--NAME: the snapshot that refs/main names, else
/// the only one), or hold one GGUF model. @throws Error when nothing is there, or several things that could be meant
std::filesystem::path modelPath(const std::string& given);

} // namespace kvscope
