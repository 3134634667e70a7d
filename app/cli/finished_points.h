// A file of points that a search has finished: a line of settings, then a line of JSON for each point. A search that
// was interrupted reads it and goes on.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::cli {

class FinishedPoints {
public:
    /// file: empty keeps points in memory only. settings: what the points depend on.
    /// @throws Error(Storage) where the file cannot be read or made, Error(BadInput) where it holds points of other
    /// settings or something else
    FinishedPoints(const std::string& file, const nlohmann::ordered_json& settings);

    /// The point of this key; null where it is not finished.
    const nlohmann::ordered_json* find(const std::string& key) const;
    /// Keeps a point; its line is written before this returns. @throws Error(Storage)
    void add(const std::string& key, const nlohmann::ordered_json& point);
    /// How many points the file had.
    std::size_t found() const { return found_; }
    const std::string& file() const { return file_; }

private:
    void read(std::ifstream& in, const nlohmann::ordered_json& settings);

    const std::string file_;
    std::map<std::string, nlohmann::ordered_json> points_;
    std::size_t found_ = 0;
    std::ofstream out_;
};

} // namespace kvscope::cli
