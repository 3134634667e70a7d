// kvscope-cli tokenize: what a text becomes before a model reads it.
#include "app/cli/commands.h"
#include "app/cli/prompt_options.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "core/prompt/chat_prompt.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

struct TokenizeArguments {
    std::string model = kDefaultModel, text, file, system;
    bool chat = false, raw = false, json = false;
};

/// One line, whatever the token holds.
std::string onOneLine(const std::string& bytes) {
    return nlohmann::json(bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int tokenize(const TokenizeArguments& arguments, bool hasText) {
    if (hasText == !arguments.file.empty())
        throw Error(ErrorKind::BadInput, hasText ? "there is a text and a file" : "there is no text",
                    "give --text or --file");
    if (arguments.chat && arguments.raw)
        throw Error(ErrorKind::BadInput, "--chat and --raw exclude each other", "leave one out");
    if (!arguments.chat && !arguments.system.empty())
        throw Error(ErrorKind::BadInput, "--system needs a chat template", "add --chat");
    const std::string given = hasText ? arguments.text : readPromptFile(arguments.file);
    const TextFiles text = Model::loadText(arguments.model);
    const Tokenizer& tokenizer = text.tokenizer;
    const std::string prompt = arguments.chat ? chatPrompt(text, arguments.model, {given, arguments.system}) : given;
    const auto ids = tokenizer.encode(prompt, !arguments.chat && !arguments.raw, !arguments.raw);
    if (arguments.json) {
        nlohmann::ordered_json out;
        out["model"] = arguments.model;
        out["text"] = prompt;
        out["ids"] = ids;
        std::vector<std::string> pieces;
        for (const std::int32_t id : ids) pieces.push_back(tokenizer.written(id));
        out["pieces"] = pieces;
        out["decoded"] = tokenizer.decode(ids);
        out["vocabulary"] = tokenizer.vocabSize();
        printOut("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
        return 0;
    }
    for (const std::int32_t id : ids)
        printOut("{:>8}  {}{}\n", id, onOneLine(tokenizer.bytesOf(id)), tokenizer.isSpecial(id) ? "  special" : "");
    printErr("{} tokens of {} bytes\n", ids.size(), prompt.size());
    return 0;
}

} // namespace

Command addTokenize(Options& program) {
    auto arguments = std::make_shared<TokenizeArguments>();
    Options sub = program.command("tokenize", "Show the tokens of a text: ids and what they stand for");
    sub.add("--model", arguments->model, "Folder with a tokenizer, or an embedded model (nosa-tiny)").showsDefault();
    const Option text = sub.addWords("--text", arguments->text, "The text");
    sub.add("--file", arguments->file, "File with the text, UTF-8");
    sub.flag("--chat", arguments->chat, "Put the text into the model's chat template first");
    sub.addWords("--system", arguments->system, "System message for the chat template");
    sub.flag("--raw", arguments->raw, "Add no special tokens and recognise none");
    sub.flag("--json", arguments->json, "Print one JSON document: text, ids, pieces, decoded");
    return [arguments, text] { return tokenize(*arguments, text.given()); };
}

} // namespace kvscope::cli
