// Where the models lie that come with the program: Hugging Face folders beside it, which both programs use.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvscope {

/// Folders that may hold the folder of a bundled model, in the order they are asked: `models` beside the program,
/// `../share/kvscope/models` where `cmake --install` puts them, and the source tree that the program was built from.
/// program: path of the running executable
std::vector<std::filesystem::path> bundledModelPlaces(const std::filesystem::path& program);

/// The path of `name` in the first of `places` that holds it. @throws Error(BadInput) naming all places
std::filesystem::path findBundledModel(const std::string& name, const std::vector<std::filesystem::path>& places);

/// Whether the running program finds the model's weights.
bool hasBundledModel(const std::string& name);

/// The folder of a bundled model, for the running program. @throws as findBundledModel
std::filesystem::path bundledModelFolder(const std::string& name);

} // namespace kvscope
