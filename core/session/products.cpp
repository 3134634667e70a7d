#include "core/session/products.h"

#include "base/error.h"
#include "base/whole_file.h"

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <ostream>
#include <sstream>
#include <utility>

namespace kvscope {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLargestFile = std::uintmax_t(1) << 20;

struct Process {
    std::mutex mutex;
    std::optional<ProductSource> source;
    std::map<std::pair<ProductMachine, ProductSource>, LoadedProducts> loaded;
    std::string name, remark;
    static Process& of() {
        static Process process;
        return process;
    }
};

/// What the environment says. Call this with the lock held.
ProductSource sourceOf(Process& process) {
    if (process.source) return *process.source;
    const char* value = std::getenv("KVSCOPE_PRODUCTS"); // NOLINT: nobody writes the environment
    ProductSource source = ProductSource::Measured;
    if (value != nullptr && value == std::string_view(nameOf(ProductSource::BuiltIn)))
        source = ProductSource::BuiltIn;
    else if (value != nullptr && *value != '\0' && value != std::string_view(nameOf(ProductSource::Measured)))
        throw Error(ErrorKind::BadInput, fmt::format("KVSCOPE_PRODUCTS is '{}'", value),
                    "set it to built-in or measured, or do not set it");
    process.source = source;
    return source;
}

fs::path folderOfProducts() {
    const auto named = [](const char* name) { // NOLINT: nobody writes the environment
        const char* value = std::getenv(name);
        return fs::path(value ? value : "");
    };
    fs::path base = named("XDG_CACHE_HOME");
    if (!base.is_absolute()) {
        base = named("HOME");
        if (!base.is_absolute()) return {};
        base /= ".cache";
    }
    return base / "kvscope" / "products";
}

LoadedProducts refused(const ProductMachine& machine, const std::string& file, const std::string& why) {
    return {std::make_shared<const ProductTable>(ProductTable::builtIn(machine)),
            fmt::format("{} is not used and the compiled-in products are: {}; remove it, or measure again", file, why)};
}

} // namespace

ProductSource productSource() {
    Process& process = Process::of();
    const std::lock_guard lock(process.mutex);
    return sourceOf(process);
}

void setProductSource(ProductSource source) {
    Process& process = Process::of();
    const std::lock_guard lock(process.mutex);
    process.source = source;
}

std::string productFile(const ProductMachine& machine) {
    const fs::path folder = folderOfProducts();
    if (folder.empty()) return {};
    std::string gpu;
    for (const char c : machine.gpu) gpu += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
    return (folder / fmt::format("{}-sm{}-cublaslt-{}.json", gpu, machine.capability, machine.library)).string();
}

LoadedProducts loadProducts(const ProductMachine& machine, ProductSource source) {
    const std::string file = productFile(machine);
    std::error_code none;
    if (source == ProductSource::BuiltIn || file.empty() || !fs::exists(file, none))
        return {std::make_shared<const ProductTable>(ProductTable::builtIn(machine)), {}};
    if (!fs::is_regular_file(file, none)) return refused(machine, file, "it is not a file");
    if (const auto bytes = fs::file_size(file, none); none || bytes > kLargestFile)
        return refused(machine, file, "it is too large");
    std::ifstream in(file, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    if (!in || !text) return refused(machine, file, "it cannot be read");
    auto read = ProductTable::read(text.str(), machine);
    if (!read.table) return refused(machine, file, read.problem);
    return {std::make_shared<const ProductTable>(std::move(*read.table)), {}};
}

void storeProducts(const ProductTable& table) {
    const std::string file = productFile(table.machine());
    if (file.empty())
        throw Error(ErrorKind::Storage, "there is no folder for measured products",
                    "set XDG_CACHE_HOME to a folder you may write to");
    std::error_code failure;
    fs::create_directories(fs::path(file).parent_path(), failure);
    const std::string why = failure ? fmt::format("its folder cannot be made: {}", failure.message())
                                    : writeWholeFile(file, [&](std::ostream& out) { out << table.text(); });
    if (!why.empty())
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", file, why),
                    "set XDG_CACHE_HOME to a folder you may write to");
}

std::shared_ptr<const ProductTable> productsOf(const ProductMachine& machine) {
    Process& process = Process::of();
    const std::lock_guard lock(process.mutex);
    const std::pair key{machine, sourceOf(process)};
    auto found = process.loaded.find(key);
    if (found == process.loaded.end()) found = process.loaded.emplace(key, loadProducts(machine, key.second)).first;
    process.name = found->second.table->name();
    process.remark = found->second.remark;
    return found->second.table;
}

std::string productsInUse() {
    Process& process = Process::of();
    const std::lock_guard lock(process.mutex);
    return process.name;
}

std::string productsRemark() {
    Process& process = Process::of();
    const std::lock_guard lock(process.mutex);
    return process.remark;
}

void takeProductsOf(std::string_view recordedName) {
    if (recordedName.starts_with(nameOf(ProductSource::BuiltIn)))
        setProductSource(ProductSource::BuiltIn);
    else if (recordedName.starts_with(nameOf(ProductSource::Measured)))
        setProductSource(ProductSource::Measured);
}

std::string unlikeProducts(std::string_view recordedName) {
    const std::string own = productsInUse();
    if (recordedName.empty() || own.empty() || own == recordedName) return {};
    return fmt::format("the recorded run's products were chosen by another table ({}) than this one's ({}), so that "
                       "sums may differ in their last bits",
                       recordedName, own);
}

} // namespace kvscope
