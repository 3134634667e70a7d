#include "profiler/roofline/gpu_table.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "base/text_file.h"
#include "base/whole_file.h"
#include "resources/resources.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct NumberKey {
    const char* key;
    double GpuSpec::*value;
    bool required;
    double low, high;
};
// The limits are far beyond any machine: they catch a number in the wrong unit.
constexpr std::array kNumbers{
    NumberKey{"read_gbps", &GpuSpec::readGbps, true, 0.1, 1e6},
    NumberKey{"tflops", &GpuSpec::tflops, true, 1e-3, 1e6},
    NumberKey{"memory_gib", &GpuSpec::memoryGib, true, 0.01, 1e6},
    NumberKey{"link_gbps", &GpuSpec::linkGbps, true, 1e-3, 1e6},
    NumberKey{"latency_us", &GpuSpec::latencyUs, true, 0, 1e6},
    NumberKey{"cache_mib", &GpuSpec::cacheMib, false, 0, 1e6},
    NumberKey{"cache_read_gbps", &GpuSpec::cacheReadGbps, false, 0, 1e7},
    NumberKey{"host_gib", &GpuSpec::hostGib, false, 0, 1e7},
};
struct TextKey {
    const char* key;
    std::string GpuSpec::*value;
};
constexpr std::array kTexts{TextKey{"name", &GpuSpec::name}, TextKey{"title", &GpuSpec::title},
                            TextKey{"link", &GpuSpec::link}, TextKey{"note", &GpuSpec::note},
                            TextKey{"processor", &GpuSpec::processor}};

[[noreturn]] void refuse(const std::string& origin, const std::string& what,
                         const std::string& hint = "docs/roofline.md describes the table") {
    throw Error(ErrorKind::BadInput, origin + ": " + what, hint);
}

bool isNumberKey(std::string_view key) {
    return std::any_of(kNumbers.begin(), kNumbers.end(), [&](const NumberKey& n) { return n.key == key; });
}

GpuSpec readSpec(const nlohmann::json& entry, const std::string& origin, std::size_t index) {
    const nlohmann::json& name = member(entry, "name");
    if (!name.is_string() || name.get<std::string>().empty())
        refuse(origin, fmt::format("entry {} of 'gpus' has no 'name'", index + 1));
    const std::string where = fmt::format("{}, GPU '{}'", origin, shown(name.get<std::string>()));
    GpuSpec spec;
    for (const auto& [key, value] : entry.items()) {
        const auto text =
            std::find_if(kTexts.begin(), kTexts.end(), [&, &k = key](const TextKey& t) { return t.key == k; });
        const auto number =
            std::find_if(kNumbers.begin(), kNumbers.end(), [&, &k = key](const NumberKey& n) { return n.key == k; });
        if (text != kTexts.end()) {
            if (!value.is_string()) refuse(where, fmt::format("'{}' is not a text", key));
            spec.*(text->value) = value.get<std::string>();
        } else if (number != kNumbers.end()) {
            if (!value.is_number()) refuse(where, fmt::format("'{}' is {}, no number", key, shownJson(value)));
            const double given = value.get<double>();
            if (!(given >= number->low && given <= number->high))
                refuse(where,
                       fmt::format("'{}' is {:g}, not between {:g} and {:g}", key, given, number->low, number->high));
            spec.*(number->value) = given;
        } else if (key == "measured") {
            if (!value.is_array()) refuse(where, "'measured' is not a list of keys");
            for (const auto& measured : value) {
                if (!measured.is_string() || !isNumberKey(measured.get<std::string>()))
                    refuse(where,
                           fmt::format("'measured' names {}, which is not a number of an entry", shownJson(measured)));
                spec.measured.push_back(measured.get<std::string>());
            }
        } else {
            refuse(where, fmt::format("unknown key '{}'", shown(key)));
        }
    }
    for (const NumberKey& number : kNumbers)
        if (number.required && !entry.contains(number.key))
            refuse(where, fmt::format("the key '{}' is missing", number.key));
    if (spec.cacheMib > 0 && spec.cacheReadGbps <= 0)
        refuse(where, "'cache_mib' without 'cache_read_gbps'", "give both or none");
    if (spec.title.empty()) spec.title = spec.name;
    return spec;
}

Json toJson(const GpuSpec& spec) {
    Json entry;
    for (const TextKey& text : kTexts)
        if (!(spec.*(text.value)).empty()) entry[text.key] = spec.*(text.value);
    for (const NumberKey& number : kNumbers)
        if (number.required || spec.*(number.value) > 0) entry[number.key] = spec.*(number.value);
    entry["measured"] = spec.measured;
    return entry;
}

std::string readFile(const std::string& file) {
    constexpr std::size_t kLongest = std::size_t(16) << 20; // bytes
    return readTextFile(file, "the GPU table", kLongest);
}

/// What a table file holds; without a file, a table without entries. A file that is no table is not written over.
Json entriesIn(const std::string& file) {
    if (file.empty())
        throw Error(ErrorKind::Storage, "there is no configuration folder to write the GPU table to",
                    "set HOME, or name a file with --gpus");
    std::error_code ignored;
    if (!fs::exists(file, ignored)) return {{"gpus", Json::array()}};
    const std::string text = readFile(file);
    GpuTable().merge(text, file);
    return Json::parse(text);
}

void makeFolderOf(const std::string& file) {
    std::error_code ignored; // the file cannot be written then, and that is said
    const fs::path folder = fs::path(file).parent_path();
    if (!folder.empty()) fs::create_directories(folder, ignored);
}

void refuseUnwritable(const std::string& file, const std::string& why) {
    if (!why.empty())
        throw Error(ErrorKind::Storage, fmt::format("the GPU table {} could not be written: {}", file, why),
                    "check that the folder is writable and the disk has room");
}

} // namespace

bool GpuSpec::isMeasured(std::string_view key) const {
    return std::find(measured.begin(), measured.end(), key) != measured.end();
}

GpuTable::GpuTable() { merge(resources::text("gpus.json").value(), "the built-in GPU table"); }

GpuTable GpuTable::load(const std::string& file) {
    GpuTable table;
    const std::string own = userGpuFile();
    std::error_code ignored;
    if (!own.empty() && fs::exists(own, ignored)) table.merge(readFile(own), own);
    if (!file.empty()) table.merge(readFile(file), file);
    return table;
}

void GpuTable::merge(std::string_view text, const std::string& origin) {
    const nlohmann::json json = parseJson(text);
    if (json.is_discarded()) refuse(origin, "this is not valid JSON");
    const nlohmann::json& entries = member(json, "gpus");
    if (!entries.is_array()) refuse(origin, "the list 'gpus' is missing");
    std::vector<GpuSpec> read; // all or nothing
    for (const auto& entry : entries) read.push_back(readSpec(entry, origin, read.size()));
    for (GpuSpec& spec : read) {
        const auto same =
            std::find_if(specs_.begin(), specs_.end(), [&](const auto& s) { return s.name == spec.name; });
        if (same != specs_.end())
            *same = std::move(spec);
        else
            specs_.push_back(std::move(spec));
    }
}

const GpuSpec* GpuTable::find(std::string_view name) const {
    for (const GpuSpec& spec : specs_)
        if (spec.name == name) return &spec;
    return nullptr;
}

const GpuSpec& GpuTable::get(std::string_view name) const {
    if (const GpuSpec* spec = find(name)) return *spec;
    std::string known;
    for (const GpuSpec& spec : specs_) known += fmt::format("{}{}", known.empty() ? "" : ", ", spec.name);
    throw Error(ErrorKind::BadInput, fmt::format("no GPU '{}' in the table", name),
                fmt::format("known: {}; {} is made by roofline --measure", known, kLocalGpu));
}

const GpuSpec& GpuTable::preferred() const {
    const GpuSpec* local = find(kLocalGpu);
    return local != nullptr ? *local : specs_.front();
}

std::string userGpuFile() {
    if (const char* config = std::getenv("XDG_CONFIG_HOME"); config != nullptr && *config == '/')
        return std::string(config) + "/kvscope/gpus.json";
    if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
        return std::string(home) + "/.config/kvscope/gpus.json";
    return {};
}

void checkGpuFile(const std::string& file) {
    (void)entriesIn(file);
    makeFolderOf(file);
    refuseUnwritable(file, whyUnwritable(file));
}

void saveGpu(const GpuSpec& spec, const std::string& file) {
    Json table = entriesIn(file);
    Json& entries = table["gpus"];
    const auto same =
        std::find_if(entries.begin(), entries.end(), [&](const Json& entry) { return entry.at("name") == spec.name; });
    if (same != entries.end())
        *same = toJson(spec);
    else
        entries.push_back(toJson(spec));
    makeFolderOf(file);
    refuseUnwritable(file, writeWholeFile(file, [&](std::ostream& out) { out << table.dump(2) << '\n'; }));
}

} // namespace kvscope
