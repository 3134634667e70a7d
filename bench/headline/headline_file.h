// The file of a headline run: parts that were measured one by one, all on one machine with one driver and one build.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::bench {

/// What all parts of a file have in common.
struct HeadlinePlace {
    std::string machine; // the GPU, or the processor and its threads: "NVIDIA H200"
    std::string driver;  // of the GPU; empty on a machine without one
    std::string commit;  // of the build; with + behind it where its sources were those of no commit
};

/// A file without parts.
nlohmann::ordered_json headlineFile(const HeadlinePlace& place);

/// Reads a file. @throws Error(BadInput) where it cannot be read or is none of this kind
nlohmann::ordered_json readHeadline(const std::string& path);

/// Adds the parts of another file; a part that both have is the other's. @throws Error(BadInput), and changes nothing,
/// where machine, driver or commit differ. from: how messages call the other
void joinHeadline(nlohmann::ordered_json& headline, const nlohmann::ordered_json& other, std::string_view from);

/// The rows of several runs, {row: {what of: value}}, as one, where each value is the list of the runs' values. A value
/// that is a list already is appended; a text, which says why there is no value, stays one.
/// @throws Error(BadInput) where a run lacks a value that another has, or a value is no finite number
nlohmann::ordered_json rowsOfRuns(const std::vector<nlohmann::ordered_json>& runs);

/// The clock, the power and the temperature of a GPU at work: the least, the middle and the most. lines: what
/// nvidia-smi prints, utilisation in %, clock in MHz, watts, degrees. @return null where no line tells of work
nlohmann::ordered_json clocksOf(const std::string& lines);

/// Replaces the file when it is complete. @throws Error(Storage)
void writeHeadline(const std::string& path, const nlohmann::ordered_json& headline);

} // namespace kvscope::bench
