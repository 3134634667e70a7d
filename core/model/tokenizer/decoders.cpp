#include "base/utf8.h"
#include "core/model/tokenizer/byte_alphabet.h"
#include "core/model/tokenizer/makers.h"
#include "core/model/tokenizer/pattern.h"
#include "core/model/tokenizer/tokenizer.h"
#include "core/model/tokenizer/unicode.h"

#include <algorithm>
#include <utility>

namespace kvscope::tokenizing {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// For steps whose members are all values: fresh() copies the step, which has not seen any token yet.
template <class Step> class Copied : public DecodeStep {
public:
    std::unique_ptr<DecodeStep> fresh() const override {
        return std::make_unique<Step>(static_cast<const Step&>(*this));
    }
};

/// Tokens of byte-level BPE to bytes, and bytes to characters as soon as they are whole.
class ByteLevelStep final : public Copied<ByteLevelStep> {
public:
    void push(std::string_view token, const Emit& emit) override {
        held_ += spelled(std::string(token));
        const std::size_t complete = held_.size() - incompleteUtf8(held_);
        emit(toValidUtf8(std::string_view(held_).substr(0, complete)));
        held_.erase(0, complete);
    }
    void finish(const Emit& emit) override {
        emit(toValidUtf8(held_));
        held_.clear();
    }
    std::string spelled(std::string token) const override {
        auto bytes = bytesOfAlphabet(token); // a token outside the alphabet stands for itself
        return bytes ? std::move(*bytes) : token;
    }
    bool fuses() const override { return true; }

private:
    std::string held_;
};

class MetaspaceStep final : public Copied<MetaspaceStep> {
public:
    MetaspaceStep(std::string replacement, bool dropsFirst)
        : replacement_(std::move(replacement)), dropsFirst_(dropsFirst) {}
    void push(std::string_view token, const Emit& emit) override {
        emit(replaceAll(token, replacement_, std::exchange(first_, false) && dropsFirst_ ? "" : " "));
    }
    std::string spelled(std::string token) const override { return replaceAll(token, replacement_, " "); }

private:
    std::string replacement_;
    bool dropsFirst_, first_ = true;
};

/// Runs of byte tokens become their characters; a run that is no UTF-8 becomes U+FFFD for each byte.
class ByteFallbackStep final : public Copied<ByteFallbackStep> {
public:
    void push(std::string_view token, const Emit& emit) override {
        if (const int byte = byteOfFallbackToken(token); byte >= 0) {
            run_ += char(byte);
            return;
        }
        finish(emit);
        emit(token);
    }
    void finish(const Emit& emit) override {
        if (run_.empty()) return;
        if (toValidUtf8(run_) == run_)
            emit(run_);
        else
            for (std::size_t i = 0; i < run_.size(); ++i) emit(kReplacementCharacter);
        run_.clear();
    }
    std::string spelled(std::string token) const override {
        const int byte = byteOfFallbackToken(token);
        return byte < 0 ? token : std::string(1, char(byte));
    }

private:
    std::string run_;
};

class FuseStep final : public Copied<FuseStep> {
public:
    void push(std::string_view token, const Emit& emit) override { emit(token); }
    bool fuses() const override { return true; }
};

/// Takes up to `front` characters equal to `content` off the front and up to `back` off the end: of every token, or,
/// when they are fused, of the whole text.
class StripStep final : public Copied<StripStep> {
public:
    StripStep(std::string content, std::size_t front, std::size_t back, bool fused)
        : content_(std::move(content)), front_(front), back_(back), fused_(fused), left_(front) {}

    void push(std::string_view token, const Emit& emit) override {
        if (!fused_) {
            std::size_t left = front_;
            takeFront(token, left);
            for (std::size_t i = 0; i < back_ && token.ends_with(content_); ++i) token.remove_suffix(content_.size());
            return emit(token);
        }
        held_ += token;
        std::string_view text = held_;
        takeFront(text, left_);
        if (!text.empty() && !content_.starts_with(text)) left_ = 0; // something else came first
        std::size_t ready = text.size();
        std::size_t copies = 0; // of `content` at the end: the text may end here
        while (copies < back_ && text.substr(0, ready).ends_with(content_)) ready -= content_.size(), ++copies;
        if (left_ > 0 && !text.empty()) ready = 0; // part of a character
        emit(text.substr(0, ready));
        held_ = std::string(text.substr(ready));
    }
    void finish(const Emit& emit) override {
        if (!fused_) return;
        std::string_view text = held_;
        for (std::size_t i = 0; i < back_ && text.ends_with(content_); ++i) text.remove_suffix(content_.size());
        emit(text);
        held_.clear();
    }

private:
    void takeFront(std::string_view& text, std::size_t& left) const {
        while (left > 0 && text.starts_with(content_)) text.remove_prefix(content_.size()), --left;
    }
    std::string content_;
    std::size_t front_, back_;
    bool fused_;
    std::size_t left_; // still to be taken off the front
    std::string held_;
};

class ReplaceStep final : public Copied<ReplaceStep> {
public:
    ReplaceStep(std::string from, std::string to, bool fused)
        : from_(std::move(from)), to_(std::move(to)), fused_(fused) {}
    void push(std::string_view token, const Emit& emit) override {
        if (!fused_) return emit(replaceAll(token, from_, to_));
        held_ += token;
        std::size_t done = 0;
        std::string out;
        for (std::size_t found; (found = held_.find(from_, done)) != std::string::npos; done = found + from_.size())
            out.append(held_, done, found - done).append(to_);
        // An occurrence may have begun in what is left.
        const std::size_t keep = std::min(from_.size() - 1, held_.size() - done);
        out.append(held_, done, held_.size() - done - keep);
        held_.erase(0, held_.size() - keep);
        emit(out);
    }
    void finish(const Emit& emit) override {
        emit(held_);
        held_.clear();
    }
    std::string spelled(std::string token) const override { return replaceAll(token, from_, to_); }

private:
    std::string from_, to_;
    bool fused_;
    std::string held_;
};

class PatternReplaceStep final : public DecodeStep {
public:
    PatternReplaceStep(std::shared_ptr<const Pattern> pattern, std::string to)
        : pattern_(std::move(pattern)), to_(std::move(to)) {}
    void push(std::string_view token, const Emit& emit) override { emit(spelled(std::string(token))); }
    std::string spelled(std::string token) const override {
        std::string out;
        std::size_t done = 0;
        Pattern::Search(*pattern_).each(token, [&](std::size_t begin, std::size_t end) {
            out.append(token, done, begin - done).append(to_);
            done = end;
        });
        return out.append(token, done);
    }
    std::unique_ptr<DecodeStep> fresh() const override { return std::make_unique<PatternReplaceStep>(pattern_, to_); }

private:
    std::shared_ptr<const Pattern> pattern_;
    std::string to_;
};

class SpaceJoiner final : public Copied<SpaceJoiner> {
public:
    void push(std::string_view token, const Emit& emit) override {
        if (!std::exchange(first_, false)) emit(" ");
        emit(token);
    }

private:
    bool first_ = true;
};

bool fusedBy(const DecodeSteps& steps) {
    return std::any_of(steps.begin(), steps.end(), [](const auto& step) { return step->fuses(); });
}

std::size_t count(const Spec& spec, const char* key) {
    const Json& value = spec.at(key);
    if (value.is_null()) return 0;
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > 1'000'000)
        spec.malformed(std::string("'") + key + "' of the Strip decoder is not a count");
    return value.get<std::size_t>();
}

} // namespace

void makeDecoderSequence(const Spec& spec, DecodeSteps& steps) {
    if (!spec.at("decoders").is_array()) spec.malformed("the decoder sequence has no list");
    for (const Json& part : spec.at("decoders")) addDecodeSteps(spec.part(part), steps);
}

void makeByteLevelDecodeStep(const Spec& spec, DecodeSteps& steps) {
    if (fusedBy(steps)) spec.unsupported("the decoder ByteLevel follows another that joins the tokens");
    steps.push_back(std::make_unique<ByteLevelStep>());
}

void makeMetaspaceDecoder(const Spec& spec, DecodeSteps& steps) {
    if (fusedBy(steps)) spec.unsupported("the decoder Metaspace follows another that joins the tokens");
    const std::string replacement = spec.text("replacement");
    if (replacement.empty()) spec.malformed("the Metaspace replacement is empty");
    bool dropsFirst = spec.flag("add_prefix_space", true);
    if (!spec.at("prepend_scheme").is_null()) dropsFirst = spec.text("prepend_scheme") != "never";
    steps.push_back(std::make_unique<MetaspaceStep>(replacement, dropsFirst));
}

void makeByteFallbackStep(const Spec& spec, DecodeSteps& steps) {
    if (fusedBy(steps)) spec.unsupported("the decoder ByteFallback follows another that joins the tokens");
    steps.push_back(std::make_unique<ByteFallbackStep>());
}

void makeFuse(const Spec&, DecodeSteps& steps) { steps.push_back(std::make_unique<FuseStep>()); }

void makeStripDecoder(const Spec& spec, DecodeSteps& steps) {
    const std::string content = spec.text("content");
    if (content.empty()) spec.malformed("the Strip decoder has no content");
    steps.push_back(std::make_unique<StripStep>(content, count(spec, "start"), count(spec, "stop"), fusedBy(steps)));
}

void makeReplaceStep(const Spec& spec, DecodeSteps& steps) {
    const Spec pattern = spec.part(spec.at("pattern"));
    if (pattern.at("String").is_string()) {
        if (pattern.text("String").empty()) spec.malformed("the Replace decoder looks for an empty text");
        steps.push_back(makeReplaceDecoder(pattern.text("String"), spec.text("content"), fusedBy(steps)));
        return;
    }
    if (fusedBy(steps)) spec.unsupported("a Replace decoder looks for a pattern across tokens");
    steps.push_back(std::make_unique<PatternReplaceStep>(std::make_shared<const Pattern>(Pattern::read(pattern)),
                                                         spec.text("content")));
}

std::unique_ptr<DecodeStep> makeByteLevelDecoder() { return std::make_unique<ByteLevelStep>(); }
std::unique_ptr<DecodeStep> makeReplaceDecoder(std::string from, std::string to, bool fused) {
    return std::make_unique<ReplaceStep>(std::move(from), std::move(to), fused);
}
std::unique_ptr<DecodeStep> makeByteFallbackDecoder() { return std::make_unique<ByteFallbackStep>(); }
std::unique_ptr<DecodeStep> makeFuseDecoder() { return std::make_unique<FuseStep>(); }
std::unique_ptr<DecodeStep> makeSpaceJoiner() { return std::make_unique<SpaceJoiner>(); }
std::unique_ptr<DecodeStep> makeStripFront(std::string content, std::size_t count) {
    return std::make_unique<StripStep>(std::move(content), count, 0, true);
}

} // namespace kvscope::tokenizing
