#include "ui/session/prompt_source.h"

#include "base/error.h"
#include "core/prompt/chat_prompt.h"
#include "profiler/read/needle_evidence.h"
#include "profiler/read/trace_reader.h"

#include <QFile>
#include <QFileInfo>

#include <utility>

namespace kvscope::ui {
namespace {

// The largest prompt file in bytes. No supported context needs a longer text. A file chosen by mistake, e.g. a disk
// image, is refused before it is read.
constexpr qint64 kLargestTextFile = qint64(64) << 20;

std::string readTextFile(const QString& path) {
    if (QFileInfo given(path); given.exists() && !given.isFile()) // a pipe would wait for its writer
        throw Error(ErrorKind::BadInput, "prompt file " + path.toStdString() + ": it is not a text file",
                    "choose a text file");
    QFile file(path);
    if (!file.open(QIODevice::ReadOnly))
        throw Error(ErrorKind::Storage, "prompt file " + path.toStdString() + ": " + file.errorString().toStdString(),
                    "choose a text file that you can read");
    if (file.size() > kLargestTextFile)
        throw Error(ErrorKind::BadInput, "prompt file " + path.toStdString() + " is larger than 64 MiB",
                    "choose a smaller file");
    const QByteArray text = file.readAll();
    if (file.error() != QFile::NoError) // only a part was read
        throw Error(ErrorKind::Storage, "prompt file " + path.toStdString() + ": " + file.errorString().toStdString(),
                    "choose a text file that you can read");
    return text.toStdString();
}

/// The prompts of a recorded run, token by token.
std::vector<std::vector<std::int32_t>> recordedPrompts(const std::string& path, int runId,
                                                       std::vector<NeedlePlace>* needles) {
    const TraceReader reader(path);
    const std::optional<RunRow> run = reader.run(runId);
    if (!run) throw Error(ErrorKind::BadInput, path + " has no run " + std::to_string(runId), "choose another prompt");
    if (needles != nullptr) *needles = needlesOf(*run);
    std::vector<std::vector<std::int32_t>> prompts;
    for (int sequence = 0; sequence < run->sequences; ++sequence) {
        auto& ids = prompts.emplace_back();
        for (const TokenRow& token : reader.prompt(runId, sequence)) ids.push_back(token.id);
        if (ids.empty())
            throw Error(ErrorKind::BadInput,
                        "run " + std::to_string(runId) + " of " + path + " does not hold the prompt of sequence " +
                            std::to_string(sequence),
                        "choose another prompt");
    }
    return prompts;
}

} // namespace

std::vector<std::vector<std::int32_t>> PromptSource::ids(const Model& model, const std::stop_token& stop,
                                                         std::vector<NeedlePlace>* needles) const {
    if (kind == Kind::Recorded) return recordedPrompts(file.toStdString(), runId, needles);
    std::vector<std::vector<std::int32_t>> prompts;
    if (kind == Kind::Needle) {
        for (int sequence = 0; sequence < sequences; ++sequence) {
            throwIfCancelled(stop);
            const NeedlePrompt prompt = needlePrompt(model.tokenizer(), sequence);
            prompts.push_back(encode(model, prompt.text));
            if (needles == nullptr) continue;
            for (NeedlePlace& place : placesOf(model.tokenizer(), prompts.back(), prompt, sequence))
                needles->push_back(std::move(place));
        }
        return prompts;
    }
    for (const std::string& prompt : build(model.tokenizer())) {
        throwIfCancelled(stop);
        prompts.push_back(encode(model, prompt));
    }
    return prompts;
}

NeedlePrompt PromptSource::needlePrompt(const Tokenizer& tokenizer, int sequence) const {
    NeedleOptions options = needle;
    options.seed += std::uint64_t(sequence);
    return makeNeedlePrompt(tokenizer, options);
}

std::vector<std::string> PromptSource::build(const Tokenizer& tokenizer) const {
    std::vector<std::string> prompts;
    if (kind == Kind::Needle) {
        for (int sequence = 0; sequence < sequences; ++sequence)
            prompts.push_back(needlePrompt(tokenizer, sequence).text);
        return prompts;
    }
    std::string prompt = kind == Kind::LongDocument ? longDocumentPrompt(tokenizer, documentTokens)
                         : kind == Kind::Text       ? text.toStdString()
                                                    : readTextFile(file);
    if (prompt.empty())
        throw Error(ErrorKind::BadInput,
                    kind == Kind::File ? "prompt file " + file.toStdString() + " is empty" : "the prompt is empty",
                    "write some text or choose another source");
    prompts.assign(std::size_t(sequences), prompt);
    return prompts;
}

std::string PromptSource::finalText(const Model& model, const std::string& prompt) const {
    return chat ? chatPrompt(model.text(), model.name(), {prompt, system.toStdString()}) : prompt;
}

std::vector<std::int32_t> PromptSource::encode(const Model& model, const std::string& prompt) const {
    const std::string given = finalText(model, prompt);
    return chat ? encodeChatPrompt(model.tokenizer(), given) : model.tokenizer().encode(given);
}

} // namespace kvscope::ui
