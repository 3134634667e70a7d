// Where prompts come from on the command line.
#pragma once

#include "core/model/model.h"
#include "core/trace/needles.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {
class Options;
}

namespace kvscope::cli {

struct PromptArguments {
    std::vector<std::string> texts, files;
    std::string idsFile, system, trace; // trace: FILE or FILE:RUN
    bool chat = false;                  // texts go through the model's chat template
    int needleTokens = 0, documentTokens = 0;
    int needles = 4;
    double needleDepth = 0.5;
    std::uint64_t promptSeed = 1;
};

/// The whole file. @throws Error(BadInput)
std::string readPromptFile(const std::string& path);

/// FILE, or FILE:RUN; the number is 0 where there is none. A colon before anything else belongs to the file's name.
std::pair<std::string, int> splitRun(const std::string& subject);

void addPromptOptions(Options& command, PromptArguments& arguments);

/// Token ids per sequence, repeated to `batch` sequences when it is larger. Built-in needle prompts get another seed
/// for each sequence.
/// needles: gets the facts that the prompts hide, where their source knows them; null: nobody asks.
/// @throws Error(BadInput) when there is not exactly one kind of prompt, or a file is wrong
std::vector<std::vector<std::int32_t>> readPrompts(const PromptArguments& arguments, const Model& model, int batch,
                                                   std::vector<NeedlePlace>* needles = nullptr);

} // namespace kvscope::cli
