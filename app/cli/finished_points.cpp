#include "app/cli/finished_points.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "base/text_file.h"

#include <filesystem>
#include <fmt/format.h>
#include <sstream>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

} // namespace

FinishedPoints::FinishedPoints(const std::string& file, const Json& settings) : file_(file) {
    if (file.empty()) return;
    std::error_code none;
    if (std::filesystem::exists(file, none) && !std::filesystem::is_regular_file(file, none))
        throw Error(ErrorKind::BadInput, fmt::format("points cannot be kept in '{}'", file),
                    "give --resume the name of a file");
    const bool there = std::filesystem::exists(file, none) && std::filesystem::file_size(file, none) > 0;
    if (there) {
        std::istringstream in(readTextFile(file, "the points"));
        read(in, settings);
    }
    out_.open(file, std::ios::app | std::ios::binary);
    if (!out_) throw Error(ErrorKind::Storage, fmt::format("cannot write '{}'", file), "give --resume another file");
    if (!there) out_ << Json{{"settings", settings}}.dump() << "\n" << std::flush;
    if (!out_) throw Error(ErrorKind::Storage, fmt::format("cannot write '{}'", file));
}

void FinishedPoints::read(std::istream& in, const Json& settings) {
    const auto refuse = [&](int number) {
        throw Error(ErrorKind::BadInput, fmt::format("line {} of '{}' is not a point of a search", number, file_),
                    "give --resume the file of an earlier search, or one that does not exist");
    };
    std::string line;
    std::uintmax_t complete = 0; // bytes of whole lines
    for (int number = 1; std::getline(in, line); ++number) {
        const Json entry = Json::parse(line, nullptr, false);
        if (in.eof()) { // the line has no end, because the search was killed while it wrote the line
            if (number == 1) refuse(number);
            break;
        }
        complete += line.size() + 1;
        if (!entry.is_object()) refuse(number);
        if (number == 1) {
            if (!entry.contains("settings") || !entry["settings"].is_object()) refuse(number);
            const auto differs = [&](const std::string& key) {
                throw Error(ErrorKind::BadInput,
                            fmt::format("the points in '{}' were found with another '{}'", file_, shown(key)),
                            "give --resume another file, or the settings of that search");
            };
            for (const auto& item : settings.items())
                if (!entry["settings"].contains(item.key()) || entry["settings"][item.key()] != item.value())
                    differs(item.key());
            for (const auto& item : entry["settings"].items())
                if (!settings.contains(item.key())) differs(item.key()); // a setting that this search leaves out
        } else {
            if (!entry.contains("key") || !entry["key"].is_string() || !entry.contains("point") ||
                !entry["point"].is_object())
                refuse(number);
            points_[entry["key"].get<std::string>()] = entry["point"];
        }
    }
    found_ = points_.size();
    std::error_code failed;
    if (complete > 0 && std::filesystem::file_size(file_, failed) > complete)
        std::filesystem::resize_file(file_, complete, failed);
    if (failed) throw Error(ErrorKind::Storage, fmt::format("cannot write '{}': {}", file_, failed.message()));
}

const Json* FinishedPoints::find(const std::string& key) const {
    const auto found = points_.find(key);
    return found == points_.end() ? nullptr : &found->second;
}

void FinishedPoints::add(const std::string& key, const Json& point) {
    points_[key] = point;
    if (file_.empty()) return;
    out_ << Json{{"key", key}, {"point", point}}.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n"
         << std::flush;
    if (!out_)
        throw Error(ErrorKind::Storage, fmt::format("cannot write '{}'", file_), "give it room and run this again");
}

} // namespace kvscope::cli
