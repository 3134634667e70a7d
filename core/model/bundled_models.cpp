#include "core/model/bundled_models.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <system_error>

namespace kvscope {
namespace fs = std::filesystem;

std::vector<fs::path> bundledModelPlaces(const fs::path& program) {
    const fs::path folder = program.parent_path();
    return {folder / "models", folder.parent_path() / "share" / "kvscope" / "models", KVSCOPE_SOURCE_MODELS};
}

fs::path findBundledModel(const std::string& name, const std::vector<fs::path>& places) {
    std::vector<std::string> asked;
    for (const fs::path& place : places) {
        std::error_code ignored;
        if (fs::exists(place / name / "config.json", ignored)) return place / name;
        asked.push_back(place.string());
    }
    throw Error(
        ErrorKind::BadInput,
        fmt::format("the model '{}' that comes with KVScope is in none of {}", name, fmt::join(asked, ", ")),
        "copy the folder resources/models of the source tree to the first of them, or name a model of your own");
}

namespace {

std::vector<fs::path> placesOfProgram() {
    std::error_code failure;
    const fs::path program = fs::read_symlink("/proc/self/exe", failure);
    return bundledModelPlaces(failure ? fs::path() : program);
}

} // namespace

bool hasBundledModel(const std::string& name) {
    for (const fs::path& place : placesOfProgram()) {
        std::error_code ignored;
        if (fs::exists(place / name / "config.json", ignored))
            return fs::exists(place / name / "model.safetensors", ignored);
    }
    return false;
}

fs::path bundledModelFolder(const std::string& name) { return findBundledModel(name, placesOfProgram()); }

} // namespace kvscope
