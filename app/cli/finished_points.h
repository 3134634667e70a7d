// A file of the points that a search has finished: a line of settings, then one line of JSON for each point. A search
// that goes on after an interruption reads it first.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::cli {

class FinishedPoints {
public:
    /// file: empty keeps points in memory only. settings: everything that the points depend on.
    /// @throws Error(Storage) where the file cannot be read or made, Error(BadInput) where it holds points of other
    /// settings or something else
    FinishedPoints(const std::string& file, const nlohmann::ordered_json& settings);

    /// The finished point with this key; null where it is not finished.
    const nlohmann::ordered_json* find(const std::string& key) const;
    /// Keeps a point, and writes its line before it returns. @throws Error(Storage)
    void add(const std::string& key, const nlohmann::ordered_json& point);
    /// How many points the file had when it was opened.
    std::size_t found() const { return found_; }
    const std::string& file() const { return file_; }

private:
    void read(std::istream& in, const nlohmann::ordered_json& settings);

    const std::string file_;
    std::map<std::string, nlohmann::ordered_json> points_;
    std::size_t found_ = 0;
    std::ofstream out_;
};

} // namespace kvscope::cli
