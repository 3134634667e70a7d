#include "app/server/service.h"

#include "base/clock.h"
#include "base/json_reading.h"
#include "core/http/token_request.h"
#include "core/prompt/chat_prompt.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

namespace kvscope::server {

using namespace http;
using Json = nlohmann::ordered_json;

namespace {

constexpr std::size_t kPast = 1024; // so many requests that have ended can still be asked about
constexpr int kCompletionTokens = 16;
constexpr std::size_t kSmallBody = 16384; // bytes; a larger body is read in another thread
constexpr const char *kJson = "application/json", *kText = "text/plain; version=0.0.4; charset=utf-8";

std::int64_t secondsSince1970() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

double seconds(std::int64_t ns) { return double(ns) / 1e9; }

std::string dumped(const Json& document) { return document.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Whether the text can be a name that a client gives to its request.
bool isName(const std::string* text) {
    return text != nullptr && !text->empty() && text->size() <= 128 &&
           std::all_of(text->begin(), text->end(), [](char c) { return c > ' ' && c < 0x7F; });
}

/// A part of a path as the client meant it: %2F stands for a slash. What is no such sign stays.
std::string percentDecoded(std::string_view text) {
    const auto digit = [](char c) {
        constexpr std::string_view kDigits = "0123456789abcdef";
        return kDigits.find(char(c | 0x20)); // digits have that bit, and letters become small ones
    };
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%' || i + 2 >= text.size() || digit(text[i + 1]) > 15 || digit(text[i + 2]) > 15) {
            out += text[i];
            continue;
        }
        out += char(digit(text[i + 1]) * 16 + digit(text[i + 2]));
        i += 2;
    }
    return out;
}

/// @throws ApiError(400) where the model has no template that can be used. Where its files lie is told to no client.
const ChatTemplate& templateOf(const Model& model) {
    if (model.chatTemplate()) return *model.chatTemplate();
    throw ApiError(
        400,
        fmt::format("{} has {}; use /v1/completions", model.name(),
                    model.chatProblem().empty() ? "no chat template" : "a chat template that cannot be used"),
        "messages");
}

/// The prompt of a chat. @throws ApiError(400) in the words of the template, without the place where its file lies
std::string promptOf(const Model& model, const std::vector<ChatMessage>& messages, bool addGenerationPrompt = true) {
    const ChatTemplate& chat = templateOf(model);
    try {
        return chat.render(messages, addGenerationPrompt);
    } catch (const Error& error) {
        const std::string_view message = error.what();
        const std::size_t skipped = message.starts_with(chat.origin() + ": ") ? chat.origin().size() + 2 : 0;
        throw ApiError(400, std::string(message.substr(skipped)), "messages");
    }
}

/// The ids of what /tokenize asks about.
std::vector<std::int32_t> tokensOf(const Model& model, const TokenizeRequest& asked) {
    if (asked.messages.empty()) return model.tokenizer().encode(asked.text, asked.addSpecial, asked.parseSpecial);
    const std::string prompt = promptOf(model, asked.messages, asked.addGenerationPrompt);
    return asked.addSpecial ? model.tokenizer().encode(prompt) : encodeChatPrompt(model.tokenizer(), prompt);
}

} // namespace

/// A request that the engine has, or had until a short time ago.
struct Service::Entry {
    serve::RequestId id = 0;
    std::string clientName; // the client's x-request-id; empty: it sent none
    Answer answer;
    Shared exchange; // null: no client waits for the answer
    ApiRequest asked;
    std::unique_ptr<AnswerText> text;
    std::string whole; // the text so far of an answer that is not streamed
    bool begun = false;
    AnswerParts parts;                  // of the answer's stream
    bool live = true, finished = false; // live: the engine has it; finished: its answer is complete
    bool promptRead = false;
    const char* state = "queued";
    std::string ending, cancelledBy, error;
    int promptTokens = 0, tokens = 0, pauses = 0;
    std::int64_t arrivedNs = 0, scheduledNs = 0, firstNs = 0, lastNs = 0, endedNs = 0, pausedNs = 0, pausedSinceNs = 0;
    std::int64_t spokenNs = 0;
};

/// What another thread makes of a body.
struct Service::Prepared {
    ApiKind kind = ApiKind::Completion;
    std::string body;
    std::shared_ptr<const Model> model;
    ApiRequest request;
    std::vector<std::int32_t> prompt;
    std::unique_ptr<ApiError> error;
    Headers headers;
    std::string clientName, requestClass;
    std::int64_t arrivedNs = 0;

    void make();
};

void Service::Prepared::make() {
    try {
        request = readApiRequest(kind, body);
        body.clear();
        if (request.ids)
            prompt = *request.ids;
        else if (kind == ApiKind::Completion)
            prompt = model->tokenizer().encode(request.prompt);
        else
            prompt = encodeChatPrompt(model->tokenizer(), promptOf(*model, request.messages));
        const int longest = model->config().maxPositions;
        const int room = longest - int(std::min<std::size_t>(prompt.size(), std::size_t(longest)));
        if (prompt.empty()) throw ApiError(400, "the prompt has no tokens", "prompt");
        if (room < 1 || request.maxTokens.value_or(1) > room)
            throw ApiError(400,
                           fmt::format("the prompt has {} tokens and {} new ones are asked for, and the model's "
                                       "context is {} tokens long",
                                       prompt.size(), request.maxTokens.value_or(1), longest),
                           request.maxTokens ? "max_tokens" : "prompt", "context_length_exceeded");
        const int vocabulary = model->config().vocab;
        for (const std::int32_t id : prompt)
            if (id >= vocabulary)
                throw ApiError(400, fmt::format("token id {} is not in the vocabulary of {}", id, vocabulary),
                               "prompt");
    } catch (const ApiError& caught) {
        error = std::make_unique<ApiError>(caught);
    } catch (const Error& caught) {
        error = std::make_unique<ApiError>(400, oneLine(caught), "messages");
    } catch (const std::exception& caught) {
        error = std::make_unique<ApiError>(500, caught.what());
    }
}

Service::Service(ServiceOptions options, Around around)
    : options_(std::move(options)), around_(std::move(around)), started_(secondsSince1970()) {}
Service::~Service() = default;

void Service::ready(std::shared_ptr<const Model> model) { model_ = std::move(model); }

std::string Service::modelName() const { return model_ ? model_->name() : "loading"; }

void Service::answer(const Shared& exchange, int status, std::string_view type, std::string_view body,
                     const Headers& headers) {
    if (exchange->gone) return;
    metrics_.answered(status);
    exchange->respond(status, type, body, headers);
}

std::string Service::refusalName() { return fmt::format("refused-{:x}-{}", started_, ++refusals_); }

std::string Service::answered(int status) {
    metrics_.answered(status);
    return refusalName();
}

void Service::refuse(const Shared& exchange, const ApiError& error, Headers headers) {
    if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
    if (error.status == 429) headers.emplace_back("retry-after", "1");
    const bool named =
        std::any_of(headers.begin(), headers.end(), [](const auto& h) { return h.first == "x-request-id"; });
    if (!named) headers.emplace_back("x-request-id", refusalName());
    if (options_.benchmark && (error.status == 429 || error.status == 507))
        headers.emplace_back("x-should-retry", "false");
    answer(exchange, error.status, kJson, errorJson(error), headers);
}

void Service::handle(Request request, const Shared& exchange) {
    Headers headers;
    const std::string* name = request.header("x-request-id");
    if (isName(name)) headers.emplace_back("x-request-id", *name);
    try {
        if (const std::string* host = request.header("host"); host && !options_.hosts.allows(*host))
            throw ApiError(403, "the Host header names another machine: start the server with --allow-host NAME");
        const bool health = request.path == "/health" || request.path == "/v1/health";
        if (!health && options_.keys.asked() && !options_.keys.allows(request.header("authorization")))
            throw ApiError(401, "the request has no key that is known: send Authorization: Bearer KEY", "",
                           "invalid_api_key");
        route(request, exchange, headers);
    } catch (const ApiError& error) {
        if (error.status == 405) headers.emplace_back("Allow", error.code);
        refuse(exchange, error.status == 405 ? ApiError(405, error.what()) : error, headers);
    }
}

void Service::route(Request& request, const Shared& exchange, const Headers& headers) {
    const auto wants = [&](const char* methods) {
        if (fmt::format(", {},", methods).find(fmt::format(" {},", request.method)) == std::string::npos)
            throw ApiError(405, fmt::format("{} takes {}, not {}", shown(request.path), methods, shown(request.method)),
                           "", methods);
    };
    const std::string& path = request.path;
    constexpr std::string_view kModels = "/v1/models", kModel = "/v1/models/", kRequests = "/v1/requests/";
    if (path == "/health" || path == "/v1/health") {
        wants("GET, HEAD");
        if (!model_) throw ApiError(503, "Loading model");
        if (stopping_) throw ApiError(503, "the server is stopping");
        return answer(exchange, 200, kJson, R"({"status":"ok"})", headers);
    }
    if (path == "/metrics") {
        wants("GET, HEAD");
        return answer(exchange, 200, kText, metrics_.text(modelName(), around_.connections()), headers);
    }
    if (path == kModels || path.starts_with(kModel)) {
        wants("GET, HEAD");
        if (!model_) throw ApiError(503, "Loading model");
        if (path == kModels) return answer(exchange, 200, kJson, modelsJson(), headers);
        const std::string name = percentDecoded(std::string_view(path).substr(kModel.size()));
        expectModel(name);
        return answer(exchange, 200, kJson, modelJson(name), headers);
    }
    if (path == "/v1/completions" || path == "/v1/chat/completions") {
        wants("POST");
        return generate(path == "/v1/completions" ? ApiKind::Completion : ApiKind::Chat, request, exchange, headers);
    }
    if (path == "/tokenize" || path == "/detokenize") {
        wants("POST");
        return tokens(path == "/tokenize", request, exchange, headers);
    }
    if (path.starts_with(kRequests)) {
        wants("GET, DELETE");
        const std::string name = percentDecoded(std::string_view(path).substr(kRequests.size()));
        return lifecycle(name, request.method == "DELETE", exchange, headers);
    }
    if (path == "/v1/responses") throw ApiError(404, "/v1/responses is not served: use /v1/chat/completions");
    throw ApiError(404, fmt::format("there is no {}", shown(path)));
}

std::vector<std::string> Service::modelNames() const {
    std::vector<std::string> names{model_->name()};
    names.insert(names.end(), options_.aliases.begin(), options_.aliases.end());
    return names;
}

/// @throws ApiError(404) where the server has no model of this name
void Service::expectModel(const std::string& name) const {
    if (const std::vector<std::string> names = modelNames(); std::ranges::find(names, name) == names.end())
        throw ApiError(404, fmt::format("there is no model '{}': this server has {}", shown(name), model_->name()),
                       "model", "model_not_found");
}

std::string Service::modelJson(const std::string& name) const {
    return dumped({{"id", name},
                   {"object", "model"},
                   {"created", started_},
                   {"owned_by", "kvscope"},
                   {"root", model_->name()},
                   {"max_model_len", model_->config().maxPositions}});
}

std::string Service::modelsJson() const {
    Json data = Json::array();
    for (const std::string& name : modelNames()) data.push_back(Json::parse(modelJson(name)));
    return dumped({{"object", "list"}, {"data", std::move(data)}});
}

void Service::generate(ApiKind kind, Request& request, const Shared& exchange, const Headers& headers) {
    if (!model_) throw ApiError(503, "Loading model");
    auto prepared = std::make_shared<Prepared>();
    prepared->kind = kind;
    prepared->body = std::move(request.body);
    prepared->model = model_;
    prepared->headers = headers;
    prepared->arrivedNs = steadyNowNs();
    if (!headers.empty()) prepared->clientName = headers.front().second;
    if (const std::string* wanted = request.header("x-request-class")) prepared->requestClass = *wanted;
    if (stopping_) return turnAway(*prepared, exchange, ApiError(503, "the server is stopping"));
    if (preparing_ + waiting_ >= options_.maxWaiting)
        return turnAway(*prepared, exchange,
                        ApiError(429, fmt::format("{} requests wait, as many as may", options_.maxWaiting)));
    if (prepared->body.size() <= kSmallBody) {
        prepared->make();
        return begin(*prepared, exchange);
    }
    ++preparing_;
    around_.aside([prepared] { prepared->make(); },
                  [this, prepared, exchange] {
                      --preparing_;
                      if (!exchange->gone) begin(*prepared, exchange);
                  });
}

/// Answers with the tokens of a text, or with the text of tokens. The engine has no part in it.
void Service::tokens(bool ofText, Request& request, const Shared& exchange, const Headers& headers) {
    if (!model_) throw ApiError(503, "Loading model");
    struct Work {
        std::string body, answer;
        std::unique_ptr<ApiError> error;
        TokenizeRequest asked;
        DetokenizeRequest given;
    };
    auto work = std::make_shared<Work>();
    work->body = std::move(request.body);
    const auto make = [this, ofText, work, model = model_] {
        try {
            if (ofText)
                work->asked = readTokenizeRequest(work->body);
            else
                work->given = readDetokenizeRequest(work->body);
            const std::string& name = ofText ? work->asked.model : work->given.model;
            if (!name.empty()) expectModel(name);
            const Tokenizer& tokenizer = model->tokenizer();
            work->answer = ofText ? tokenizeJson(tokenizer, tokensOf(*model, work->asked), model->config().maxPositions,
                                                 work->asked)
                                  : detokenizeJson(tokenizer, work->given.tokens);
        } catch (const ApiError& caught) {
            work->error = std::make_unique<ApiError>(caught);
        } catch (const Error& caught) {
            work->error = std::make_unique<ApiError>(400, oneLine(caught), "messages");
        } catch (const std::exception& caught) {
            work->error = std::make_unique<ApiError>(500, caught.what());
        }
    };
    const auto tell = [this, work, exchange, headers] {
        if (work->error) return refuse(exchange, *work->error, headers);
        answer(exchange, 200, kJson, work->answer, headers);
    };
    if (work->body.size() <= kSmallBody) {
        make();
        return tell();
    }
    ++preparing_;
    around_.aside(make, [this, tell] {
        --preparing_;
        tell();
    });
}

/// Refuses a request for what the server does at the time, not for what the request is.
void Service::turnAway(const Prepared& prepared, const Shared& exchange, const ApiError& error) {
    around_.turnedAway(prepared.arrivedNs, prepared.requestClass, error.what());
    metrics_.ended(nameOf(serve::Ending::Refused), 0, -1);
    refuse(exchange, error, prepared.headers);
}

void Service::begin(Prepared& prepared, const Shared& exchange) {
    ApiRequest& asked = prepared.request;
    if (!prepared.error && stopping_) return turnAway(prepared, exchange, ApiError(503, "the server is stopping"));
    try {
        if (prepared.error) throw ApiError(*prepared.error);
        if (!asked.model.empty()) expectModel(asked.model);
    } catch (const ApiError& error) {
        return refuse(exchange, error, prepared.headers);
    }

    auto made = std::make_unique<Entry>();
    Entry& entry = *made;
    entry.id = ++last_;
    entry.clientName = prepared.clientName;
    entry.answer = {asked.kind,
                    fmt::format("{}-{:x}-{}", asked.kind == ApiKind::Chat ? "chatcmpl" : "cmpl", started_, entry.id),
                    asked.model.empty() ? model_->name() : asked.model,
                    secondsSince1970(),
                    asked.includeUsage,
                    asked.usageInParts};
    entry.exchange = exchange;
    entry.text = std::make_unique<AnswerText>(model_->tokenizer(), asked.stop);
    entry.promptTokens = int(prepared.prompt.size());
    entry.arrivedNs = entry.spokenNs = prepared.arrivedNs;
    if (!prepared.requestClass.empty()) asked.requestClass = prepared.requestClass;

    serve::Submission submission;
    submission.id = entry.id;
    submission.maxTokens =
        asked.maxTokens.value_or(asked.kind == ApiKind::Chat ? options_.chatTokens : kCompletionTokens);
    submission.maxTokens = std::min(submission.maxTokens, model_->config().maxPositions - entry.promptTokens);
    asked.maxTokens = submission.maxTokens;
    submission.stopAtEos = !asked.ignoreEos;
    submission.sampling.temperature = asked.temperature;
    submission.sampling.topP = asked.topP;
    submission.sampling.topK = asked.topK;
    submission.sampling.seed =
        asked.seed ? *asked.seed : (std::uint64_t(std::random_device()()) << 32 | std::random_device()());
    submission.queuedNs = prepared.arrivedNs;
    submission.prompt = std::move(prepared.prompt);
    if (!asked.stop.empty())
        submission.endsWith = [model = model_, text = std::make_shared<AnswerText>(model_->tokenizer(), asked.stop)](
                                  std::int32_t token) { return text->push(token), text->stopped(); };
    entry.asked = std::move(asked);
    exchange->request = entry.id;
    names_[entry.answer.id] = entry.id;
    // A client may not give its request a name of ours: it would stand for another client's request.
    if (!entry.clientName.empty() && !isOurs(entry.clientName)) names_[entry.clientName] = entry.id;
    entries_.emplace(entry.id, std::move(made));
    ++live_, ++waiting_;
    metrics_.ignoredMembers(entry.asked.ignored);
    around_.submit(std::move(submission), entry.asked.requestClass);
}

bool Service::isOurs(const std::string& name) {
    const Entry* const entry = find(name);
    return entry != nullptr && entry->answer.id == name;
}

Service::Entry* Service::find(const std::string& name) {
    const auto known = names_.find(name);
    if (known == names_.end()) return nullptr;
    const auto found = entries_.find(known->second);
    return found == entries_.end() ? nullptr : found->second.get();
}

void Service::lifecycle(const std::string& name, bool cancels, const Shared& exchange, const Headers& headers) {
    Entry* entry = find(name);
    if (!entry) throw ApiError(404, fmt::format("there is no request {}", shown(name)));
    if (cancels && (!entry->live || entry->finished))
        throw ApiError(404, fmt::format("request {} has ended", shown(name)));
    if (cancels) {
        cancel(*entry, "client");
        fail(*entry,
             ApiError(400, fmt::format("request {} was cancelled by DELETE", entry->answer.id), "", "cancelled"));
    }
    const auto at = [&](std::int64_t ns) { return ns > 0 ? Json(seconds(ns - entry->arrivedNs)) : Json(nullptr); };
    Json document{{"id", entry->answer.id},
                  {"object", "request"},
                  {"x_request_id", entry->clientName.empty() ? Json(nullptr) : Json(entry->clientName)},
                  {"class", entry->asked.requestClass},
                  {"state", entry->state},
                  {"cancelled_by", entry->cancelledBy.empty() ? Json(nullptr) : Json(entry->cancelledBy)},
                  {"error", entry->error.empty() ? Json(nullptr) : Json(entry->error)},
                  {"created", entry->answer.created},
                  {"prompt_tokens", entry->promptTokens},
                  {"cached_tokens", 0},
                  {"max_tokens", entry->asked.maxTokens.value_or(0)},
                  {"output_tokens", entry->tokens},
                  {"scheduled_s", at(entry->scheduledNs)},
                  {"first_token_s", at(entry->firstNs)},
                  {"last_token_s", at(entry->lastNs)},
                  {"ended_s", at(entry->endedNs)},
                  {"pauses", entry->pauses},
                  {"paused_s", seconds(entry->pausedNs)}};
    if (cancels) document["cancelled"] = true;
    answer(exchange, 200, kJson, dumped(document), headers);
}

void Service::gone(Exchange& exchange) {
    exchange.gone = true;
    const auto found = entries_.find(exchange.request);
    if (found == entries_.end()) return;
    Entry& entry = *found->second;
    if (entry.exchange.get() != &exchange) return; // its answer was complete
    entry.exchange.reset();
    cancel(entry, "disconnect");
    entry.finished = true;
}

void Service::cancel(Entry& entry, const char* by) {
    if (!entry.live || entry.finished) return;
    entry.cancelledBy = by;
    around_.cancel(entry.id, by);
}

void Service::cancelAll(const std::string& why) {
    for (const auto& [id, entry] : entries_) {
        if (!entry->live || entry->finished) continue;
        cancel(*entry, "server");
        fail(*entry, ApiError(503, why));
    }
}

void Service::tick(std::int64_t ns) {
    for (const auto& [id, entry] : entries_) {
        if (!entry->live || entry->finished || !entry->exchange) continue;
        if (options_.deadlineSeconds > 0 && seconds(ns - entry->arrivedNs) > options_.deadlineSeconds) {
            cancel(*entry, "deadline");
            fail(*entry, ApiError(504, fmt::format("request {} had not ended after {} s", entry->answer.id,
                                                   options_.deadlineSeconds)));
        } else if (entry->asked.stream && options_.commentSeconds > 0 &&
                   seconds(ns - entry->spokenNs) > options_.commentSeconds) {
            entry->spokenNs = ns;
            beginStream(*entry);
            entry->exchange->stream(": wait\n\n");
        }
    }
}

void Service::batch(const EngineBatch& batch) {
    metrics_.batch(batch);
    std::unordered_map<serve::RequestId, const EngineEvent*> ends;
    for (const EngineEvent& event : batch.events)
        if (event.kind == EngineEvent::Kind::Ended) ends[event.id] = &event;
    for (const EngineEvent& event : batch.events) {
        const auto found = entries_.find(event.id);
        if (found == entries_.end()) continue;
        Entry& entry = *found->second;
        switch (event.kind) {
        case EngineEvent::Kind::Scheduled:
            entry.scheduledNs = event.ns;
            entry.state = "prefilling";
            --waiting_;
            metrics_.queued(seconds(event.ns - entry.arrivedNs));
            break;
        case EngineEvent::Kind::Token: {
            const auto end = ends.find(event.id);
            token(entry, event, end == ends.end() ? nullptr : end->second);
            break;
        }
        case EngineEvent::Kind::Paused:
            entry.state = "paused";
            entry.pausedSinceNs = event.ns, ++entry.pauses;
            metrics_.paused();
            break;
        case EngineEvent::Kind::Resumed:
            entry.state = "decoding";
            entry.pausedNs += event.ns - entry.pausedSinceNs;
            metrics_.pause(seconds(event.ns - entry.pausedSinceNs));
            break;
        case EngineEvent::Kind::Ended:
            ended(entry, event);
            break;
        }
    }
}

void Service::token(Entry& entry, const EngineEvent& event, const EngineEvent* end) {
    metrics_.token();
    if (!std::exchange(entry.promptRead, true)) metrics_.promptRead(entry.promptTokens);
    if (entry.finished) return; // the engine made the token before it heard that the answer is complete
    ++entry.tokens;
    if (entry.tokens == 1) {
        entry.firstNs = event.ns;
        entry.state = "decoding";
        metrics_.firstToken(seconds(event.ns - entry.arrivedNs));
        metrics_.prefilled(seconds(event.ns - entry.scheduledNs));
    } else {
        metrics_.gap(seconds(event.ns - entry.lastNs));
    }
    entry.lastNs = entry.spokenNs = event.ns;
    std::string text = entry.text->push(event.token);
    std::string reason;
    if (!entry.text->stopped() && end && (end->ending == serve::Ending::Length || end->ending == serve::Ending::Stop))
        reason = end->ending == serve::Ending::Length ? "length" : "stop", text += entry.text->finish();
    if (entry.text->stopped()) reason = "stop";
    if (entry.asked.stream)
        streamPart(entry, text, reason);
    else
        entry.whole += text;
    if (!reason.empty()) finish(entry, reason);
}

void Service::beginStream(Entry& entry) {
    if (entry.begun || !entry.exchange) return;
    entry.begun = true;
    metrics_.answered(200);
    entry.exchange->beginStream({{"x-request-id", entry.clientName.empty() ? entry.answer.id : entry.clientName}});
}

void Service::streamPart(Entry& entry, std::string_view text, std::string_view finish) {
    if (!entry.exchange) return;
    beginStream(entry);
    const Shared exchange = entry.exchange; // kept here, because the client may be found gone meanwhile
    std::string bytes = entry.parts.next(entry.answer, text, finish, {entry.promptTokens, entry.tokens});
    if (!finish.empty()) {
        if (entry.answer.includeUsage) bytes += event(usageJson(entry.answer, {entry.promptTokens, entry.tokens}));
        bytes += kDone;
    }
    exchange->stream(bytes);
}

/// Completes the answer.
void Service::finish(Entry& entry, const std::string& reason) {
    entry.finished = true;
    entry.ending = reason;
    const Shared exchange = std::move(entry.exchange);
    if (!exchange) return;
    if (entry.asked.stream)
        exchange->endStream(true);
    else
        answer(exchange, 200, kJson, answerJson(entry.answer, entry.whole, reason, {entry.promptTokens, entry.tokens}),
               {{"x-request-id", entry.clientName.empty() ? entry.answer.id : entry.clientName}});
    entry.whole.clear();
}

/// Answers with an error.
void Service::fail(Entry& entry, const ApiError& error) {
    entry.finished = true;
    entry.error = error.what();
    const Shared exchange = std::move(entry.exchange);
    if (!exchange) return;
    if (entry.begun) {
        exchange->stream(event(errorJson(error)));
        exchange->endStream(false);
    } else {
        refuse(exchange, error, {{"x-request-id", entry.clientName.empty() ? entry.answer.id : entry.clientName}});
    }
}

void Service::ended(Entry& entry, const EngineEvent& event) {
    if (!entry.live) return;
    entry.live = false;
    entry.endedNs = event.ns;
    --live_;
    if (entry.scheduledNs == 0) --waiting_;
    if (entry.ending.empty()) entry.ending = nameOf(event.ending);
    if (!entry.finished) {
        const int status = event.error == ErrorKind::BadInput ? 400 : event.error == ErrorKind::OutOfMemory ? 507 : 500;
        fail(entry, event.ending == serve::Ending::Cancelled
                        ? ApiError(503, "the request was cancelled")
                        : ApiError(event.ending == serve::Ending::Failed ? 500 : status, event.message));
    }
    entry.state = entry.ending == "stop" || entry.ending == "length" ? "finished" : nameOf(event.ending);
    metrics_.ended(entry.ending, seconds(event.ns - entry.arrivedNs),
                   entry.firstNs > 0 ? seconds(entry.lastNs - entry.firstNs) : -1);
    entry.text.reset();
    past_.push_back(entry.id);
    if (past_.size() <= kPast) return;
    const auto oldest = entries_.find(past_.front());
    past_.pop_front();
    for (const std::string& name : {oldest->second->answer.id, oldest->second->clientName})
        if (const auto known = names_.find(name); known != names_.end() && known->second == oldest->first)
            names_.erase(known);
    entries_.erase(oldest);
}

} // namespace kvscope::server
