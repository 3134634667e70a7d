// The results of eval: the JSON that it prints, the table and the CSV that are made of it, and a folder that grows row
// by row, so that an interrupted eval can go on.
#pragma once

#include "core/eval/eval.h"

#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::cli {

using Json = nlohmann::ordered_json;

/// The result of one configuration as a row of the document. full: the score of the same text with full attention,
/// which the row's perplexity is compared with
Json evalRow(const EvalResult& result, const TextScore& full);

/// The row's method with its settings, e.g. "nosa select_blocks=2".
std::string evalRowName(const Json& row);

void printEvalTable(const Json& document);
std::string evalCsv(const Json& document);

/// eval.json, eval.csv and eval.svg in one folder. Every row that is added is on the disk before the next one begins.
class EvalFolder {
public:
    /// document: everything but rows. Rows that an earlier, equal evaluation left there are taken over.
    /// @throws Error(Storage), Error(BadInput) where the folder holds an evaluation with other options
    EvalFolder(std::string folder, Json document);

    bool holds(const EvalCase& row, int context) const;
    /// Adds a row at the end and writes the files; finish() puts the rows in order. @throws Error(Storage)
    void add(Json row);
    const Json& document() const { return document_; }
    std::size_t rows() const { return document_["rows"].size(); }
    /// Puts the rows in the order of the contexts and, within a context, of the cases, with rows of other cases at the
    /// end, and writes the files. @throws Error(Storage)
    void finish(const std::vector<EvalCase>& cases, const std::vector<int>& contexts);

private:
    void writeAll() const;
    void write(const char* name, const std::string& text) const;
    std::string folder_; // empty: nothing is written
    Json document_;
};

} // namespace kvscope::cli
