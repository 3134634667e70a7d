// The parts a tokenizer is composed of, in the order text passes them, and the registry of those that tokenizer.json
// may name. A new one is a class in its file and a row in registry.cpp.
#pragma once

#include "core/model/tokenizer/spec.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::tokenizing {

/// Rewrites a text before it is cut. Texts are valid UTF-8 throughout.
class Normalizer {
public:
    virtual ~Normalizer() = default;
    virtual void apply(std::string& text) const = 0;
};

/// A text cut into pieces; what lies between them is dropped.
struct Pieces {
    struct Range {
        std::size_t begin, end;
    };
    std::string text;
    std::vector<Range> ranges;
    bool startsPrompt = false; // the first byte of `text` is the first of everything that is encoded

    std::string_view view(Range range) const {
        return std::string_view(text).substr(range.begin, range.end - range.begin);
    }
    /// Rebuilds the text from its pieces; rewrite(piece, isFirstOfPrompt, out) appends what a piece becomes.
    void rewrite(const std::function<void(std::string_view, bool, std::string&)>& change);
};

/// Cuts pieces finer, or rewrites them.
class PreTokenizer {
public:
    virtual ~PreTokenizer() = default;
    virtual void apply(Pieces& pieces) const = 0;
    /// Whether its pieces hold the model's bytes instead of characters. Such a step is the last one.
    virtual bool makesBytes() const { return false; }
};

/// Turns a piece into ids. Immutable: several threads may encode.
class TokenModel {
public:
    virtual ~TokenModel() = default;
    virtual void encode(std::string_view piece, std::vector<std::int32_t>& ids) const = 0;
};

/// Receives parts of the decoded text.
using Emit = std::function<void(std::string_view)>;

/// One step from tokens back to text. It keeps what a later token may still change, so decoding token by token gives
/// the same text as decoding at once.
class DecodeStep {
public:
    virtual ~DecodeStep() = default;
    virtual void push(std::string_view token, const Emit& emit) = 0;
    virtual void finish(const Emit&) {}
    /// The text of one token alone: without what the step adds or leaves out because of the tokens before it.
    virtual std::string spelled(std::string token) const { return token; }
    /// Whether all later steps see one long token that arrives in parts.
    virtual bool fuses() const { return false; }
    /// A step of this kind that has seen nothing.
    virtual std::unique_ptr<DecodeStep> fresh() const = 0;
};

/// `make` appends the steps that one component of the file stands for: most append one, a Sequence several, and some
/// none.
template <class Component> struct ComponentEntry {
    const char* type;
    void (*make)(const Spec& spec, std::vector<std::unique_ptr<Component>>& steps);
};
std::span<const ComponentEntry<Normalizer>> normalizers();
std::span<const ComponentEntry<PreTokenizer>> preTokenizers();
std::span<const ComponentEntry<DecodeStep>> decodeSteps();

/// Finds the component that `spec` describes in the registry and appends its steps; null appends none. @throws Error
/// naming it
void addNormalizers(const Spec& spec, std::vector<std::unique_ptr<Normalizer>>& steps);
void addPreTokenizers(const Spec& spec, std::vector<std::unique_ptr<PreTokenizer>>& steps);
void addDecodeSteps(const Spec& spec, std::vector<std::unique_ptr<DecodeStep>>& steps);

// Steps for tokenizers that do not come from a tokenizer.json.
std::unique_ptr<Normalizer> makeNfc(const std::string& origin);
std::unique_ptr<Normalizer> makeReplaceText(std::string from, std::string to);
std::unique_ptr<Normalizer> makeCollapseSpaces();
std::unique_ptr<PreTokenizer> makeIsolatingSplit(const std::string& expression, const std::string& origin);
/// Makes bytes for the model of every piece, and cuts no further.
std::unique_ptr<PreTokenizer> makeByteLevel();
enum class Prepend { Never, First, Always };
/// Replaces spaces by U+2581, and puts one more in front, as SentencePiece does even before a space.
std::unique_ptr<PreTokenizer> makeMetaspace(Prepend prepend);
std::unique_ptr<DecodeStep> makeByteLevelDecoder();
std::unique_ptr<DecodeStep> makeReplaceDecoder(std::string from, std::string to, bool fused);
std::unique_ptr<DecodeStep> makeByteFallbackDecoder();
std::unique_ptr<DecodeStep> makeStripFront(std::string content, std::size_t count); // of the joined text
std::unique_ptr<DecodeStep> makeFuseDecoder();
/// The decoder of a file that has none: tokens with spaces between them.
std::unique_ptr<DecodeStep> makeSpaceJoiner();

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81"; // U+2581

} // namespace kvscope::tokenizing
