// Built-in prompts.
#pragma once

#include "core/model/model.h"
#include "core/model/tokenizer/tokenizer.h"
#include "core/trace/needles.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

struct NeedleOptions {
    int tokens = 9000;  // length of the whole prompt, special tokens included
    int needles = 4;    // key-value facts hidden in the text; one of them is asked for at the end
    double depth = 0.5; // place of the needle asked for: 0 = start, 1 = end
    std::uint64_t seed = 1;
    bool passKey = false; // the one that is asked for is "the pass key", which is said twice, and not a name's number
};

/// A fact that a prompt hides.
struct HiddenFact {
    std::string sentence, name, value; // without the line breaks around it
    bool asked = false;                // the prompt asks for the value
};

struct NeedlePrompt {
    std::string text;
    std::string question;          // last line of text
    std::string answer;            // expected digits
    int needleToken = 0;           // index of the asked-for needle's first token
    std::vector<HiddenFact> facts; // in the order of the text
};

/// Hides facts ("The magic number for silver lantern is 73398.") in a document; nosa-tiny was trained on such prompts.
/// @throws Error(BadInput) when the facts do not fit the length
NeedlePrompt makeNeedlePrompt(const Tokenizer& tokenizer, const NeedleOptions& options);

/// Finds the facts among the ids that the model reads, whatever was put around the text. A fact that is not there as
/// one stretch of tokens has no place.
std::vector<NeedlePlace> placesOf(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                                  const NeedlePrompt& prompt, int sequence);

/// Prompts of exact lengths for the requests of a workload. Each consists of paragraphs of one document, in a random
/// order that differs from prompt to prompt, so that the keys of two prompts differ as those of two texts do.
class SplicedPrompts {
public:
    /// Encodes the paragraphs. A tokenizer that only knows ids gives random ids in their place. The model must outlive
    /// this object.
    explicit SplicedPrompts(const Model& model);
    /// The prompt with this number. The same number and seed give the same tokens; the first line names both. @throws
    /// Error(BadInput) unless 1 <= tokens <= 4,194,304
    std::vector<std::int32_t> prompt(int tokens, std::int64_t number, std::uint64_t seed) const;

private:
    std::vector<std::int32_t> beginning(std::int64_t number, std::uint64_t seed) const;

    const Tokenizer& tokenizer_;
    const int vocab_;
    std::vector<std::vector<std::int32_t>> paragraphs_; // empty where texts cannot be encoded
};

/// A long document to continue, cut to `tokens`.
std::string longDocumentPrompt(const Tokenizer& tokenizer, int tokens);

} // namespace kvscope
