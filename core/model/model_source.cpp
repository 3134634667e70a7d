#include "core/model/model_source.h"

#include "base/error.h"
#include "base/nearest_name.h"
#include "core/model/bundled_models.h"
#include "core/model/gguf.h"
#include "core/model/model.h"
#include "core/model/safetensors.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace fs = std::filesystem;

namespace {

constexpr const char *kConfig = "config.json", *kWeights = "model.safetensors",
                     *kIndex = "model.safetensors.index.json", *kAdapter = "adapter_config.json";
constexpr std::size_t kMostListed = 5; // names in a sentence

bool isThere(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}

bool isFolder(const fs::path& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
}

/// Names of a folder's entries that `wanted` takes, ascending.
template <class Wanted> std::vector<std::string> entries(const fs::path& folder, const Wanted& wanted) {
    std::vector<std::string> names;
    std::error_code ignored;
    for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end; at.increment(ignored))
        if (wanted(at->path())) names.push_back(at->path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

std::string joined(std::vector<std::string> names) {
    const std::size_t more = names.size() - std::min(names.size(), kMostListed);
    names.resize(names.size() - more);
    return more > 0 ? fmt::format("{} and {} more", fmt::join(names, ", "), more)
                    : fmt::format("{}", fmt::join(names, ", "));
}

bool holdsCheckpoint(const fs::path& folder) {
    return isThere(folder / kConfig) && (isThere(folder / kWeights) || isThere(folder / kIndex));
}

/// GGUF models of a folder: whole files and first parts.
std::vector<std::string> ggufModels(const fs::path& folder) {
    return entries(folder, [](const fs::path& path) {
        if (path.extension() != ".gguf") return false;
        try {
            return ggufParts(path.string()).front() == path.string();
        } catch (const Error&) {
            return false; // a later part
        }
    });
}

/// The snapshot in a folder of the hub's cache; empty where the folder is none.
fs::path snapshotOf(const fs::path& folder) {
    const fs::path snapshots = folder / "snapshots";
    if (!isFolder(snapshots)) return {};
    if (isThere(folder / "refs/main")) {
        std::string revision = textOfFile(folder / "refs/main");
        revision.erase(revision.find_last_not_of(" \r\n") + 1);
        const bool plain = revision.find_first_of("/\\") == revision.npos && revision != "." && revision != "..";
        if (plain && !revision.empty() && isFolder(snapshots / revision)) return snapshots / revision;
    }
    const auto names = entries(snapshots, isFolder);
    if (names.size() == 1) return snapshots / names.front();
    throw Error(ErrorKind::BadInput,
                names.empty()
                    ? fmt::format("{} holds no snapshot of its model", folder.string())
                    : fmt::format("{} holds several snapshots of its model: {}", folder.string(), joined(names)),
                names.empty() ? "download the model again" : "give the folder of one of them");
}

/// The model's name where a path ends in a revision: models--OWNER--NAME/snapshots/REVISION.
std::string hubName(const fs::path& folder) {
    const std::string cached = folder.parent_path().parent_path().filename().string();
    const std::size_t at = cached.rfind("--");
    return folder.parent_path().filename() == "snapshots" && cached.starts_with("models--") ? cached.substr(at + 2)
                                                                                            : std::string();
}

std::string nameOf(const fs::path& folder) {
    std::error_code ignored;
    fs::path path = fs::absolute(folder, ignored).lexically_normal();
    if (path.filename().empty()) path = path.parent_path(); // ended in a slash
    const std::string hub = hubName(path);
    return hub.empty() ? path.filename().string() : hub;
}

/// A checkpoint's weights as PyTorch's own files, which are programs: they are not even opened.
void refusePickles(const fs::path& folder) {
    const auto pickles = entries(folder, [](const fs::path& path) {
        return path.extension() == ".bin" || path.extension() == ".pt" || path.extension() == ".pth";
    });
    if (pickles.empty()) return;
    throw Error(ErrorKind::Unsupported,
                fmt::format("{} has no {}, only {}", folder.string(), kWeights, joined(pickles)),
                "such files may run code when they are read: use a checkpoint with .safetensors weights");
}

ModelSource embeddedSource(const std::string& name) {
    ModelSource source;
    source.embedded = true;
    source.name = name;
    source.folder = bundledModelFolder(name);
    source.configOrigin = (source.folder / "config.json").string();
    source.weightsOrigin = (source.folder / "model.safetensors").string();
    source.configText = textOfFile(source.configOrigin);
    source.weightFiles.push_back(source.weightsOrigin);
    return source;
}

/// The library adds the adapter of a folder to its weights, where the package that can is installed.
/// @throws Error(Unsupported)
void refuseAdapter(const fs::path& folder) {
    if (!isThere(folder / kAdapter)) return;
    if (!holdsCheckpoint(folder))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{} holds an adapter ({}), which this program cannot add to a model's weights",
                                folder.string(), kAdapter),
                    "merge it into its base model with the program that made it, and give the folder that it writes");
    throw Error(ErrorKind::Unsupported,
                fmt::format("{} holds an adapter beside the model ({}), which transformers adds to the weights and "
                            "this program cannot",
                            folder.string(), kAdapter),
                fmt::format("merge it into the weights with the program that made it; for the model without it, give "
                            "{} or move the adapter to another folder",
                            (folder / kWeights).string()));
}

ModelSource ggufSource(const fs::path& path) {
    ModelSource source;
    source.name = path.stem().string();
    source.configOrigin = source.weightsOrigin = path.string();
    source.weightFiles = ggufParts(path.string());
    source.gguf = true;
    return source;
}

} // namespace

fs::path modelPath(const std::string& given) {
    fs::path path(given);
    const char* const home = std::getenv("HOME");
    if ((given == "~" || given.starts_with("~/")) && home != nullptr && !isThere(path))
        path = fs::path(home) / given.substr(std::min<std::size_t>(given.size(), 2));
    if (!isThere(path))
        throw Error(ErrorKind::BadInput,
                    fmt::format("there is no model '{}'{}", given, didYouMean(given, embeddedModels())),
                    fmt::format("give a Hugging Face folder, a .safetensors or .gguf file, or an embedded model: {}",
                                fmt::join(embeddedModels(), ", ")));
    if (!isFolder(path) || holdsCheckpoint(path)) return path;
    if (const fs::path snapshot = snapshotOf(path); !snapshot.empty()) return modelPath(snapshot.string());
    const auto models = ggufModels(path);
    if (models.size() > 1)
        throw Error(ErrorKind::BadInput, fmt::format("{} holds several models: {}", path.string(), joined(models)),
                    "give one of these files");
    return models.empty() ? path : path / models.front();
}

ModelSource findModel(const std::string& nameOrPath) {
    const auto known = embeddedModels();
    if (std::find(known.begin(), known.end(), nameOrPath) != known.end()) return embeddedSource(nameOrPath);
    const fs::path path = modelPath(nameOrPath);
    if (path.extension() == ".gguf" && !isFolder(path)) return ggufSource(path);
    ModelSource source;
    if (isFolder(path)) {
        source.folder = path;
    } else if (path.extension() == ".safetensors") {
        source.folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
        source.weightFiles.push_back(path.string());
    } else {
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} is neither a folder nor a .safetensors or .gguf file", nameOrPath),
                    "give the folder that holds config.json, or a model file");
    }
    source.name = nameOf(source.folder);
    if (source.weightFiles.empty()) refuseAdapter(source.folder);
    source.adapterLeftOut = isThere(source.folder / kAdapter);
    const auto need = [&](const char* file) {
        const fs::path full = source.folder / file;
        if (!isThere(full))
            throw Error(ErrorKind::BadInput, fmt::format("{} has no {}", source.folder.string(), file),
                        "download the checkpoint again, with all its files");
        return full.string();
    };
    source.configOrigin = need(kConfig);
    source.configText = textOfFile(source.configOrigin);
    if (!source.weightFiles.empty()) {
        source.weightsOrigin = source.weightFiles.front();
        return source;
    }
    // As the library: one file with everything goes before shards.
    const fs::path index = source.folder / kIndex;
    source.indexLeftOut = isThere(index) && isThere(source.folder / kWeights);
    if (isThere(index) && !source.indexLeftOut) {
        source.weightsOrigin = index.string();
        for (const std::string& shard : shardNames(textOfFile(index), index.string()))
            source.weightFiles.push_back((source.folder / shard).string());
    } else {
        if (!isThere(source.folder / kWeights)) refusePickles(source.folder);
        source.weightsOrigin = need(kWeights);
        source.weightFiles.push_back(source.weightsOrigin);
    }
    return source;
}

} // namespace kvscope
