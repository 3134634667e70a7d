// The endpoints: turn requests into submissions to the engine, and the engine's tokens into answers. Sockets are
// elsewhere (connection.h).
#pragma once

#include "app/server/access.h"
#include "app/server/exchange.h"
#include "app/server/metrics.h"
#include "core/http/answer_text.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvscope::server {

struct ServiceOptions {
    std::vector<std::string> aliases; // other names of the model
    ApiKeys keys;
    HostCheck hosts{{}};
    int maxWaiting = 1024;      // requests that may wait for their beginning; more are refused
    double deadlineSeconds = 0; // for a request, from its arrival; 0: none
    double commentSeconds = 5;  // a silent stream gets a comment this often; 0: none
    bool benchmark = false;     // answers do not tell clients to try again
    int chatTokens = 512;       // new tokens of a chat whose request names no number
};

/// The thread of the connections makes all calls.
class Service {
public:
    /// Functions that the program around the service provides.
    struct Around {
        std::function<void(serve::Submission, std::string kind)> submit; // kind: the request's class
        /// by: on whose behalf.
        std::function<void(serve::RequestId, std::string by)> cancel;
        /// Called when a request is refused without having been submitted.
        std::function<void(std::int64_t arrivalNs, std::string kind, std::string why)> turnedAway;
        /// Runs the first function in another thread, and then the second in the thread of the connections.
        std::function<void(std::function<void()>, std::function<void()>)> aside;
        std::function<std::size_t()> connections;
    };
    Service(ServiceOptions options, Around around);
    ~Service();

    void handle(http::Request request, const std::shared_ptr<Exchange>& exchange);
    /// The client of this answer has closed its connection, or reads too slowly.
    void gone(Exchange& exchange);
    /// Counts a request that a connection answers by itself. @return its x-request-id
    std::string answered(int status);

    void ready(std::shared_ptr<const Model> model);
    void batch(const EngineBatch& batch);
    /// Ends requests whose deadline has passed, and sends comments. ns: of the steady clock.
    void tick(std::int64_t ns);
    /// From now on nothing is admitted.
    void stopAdmitting() { stopping_ = true; }
    /// Ends all requests that run; their clients get the sentence `why`.
    void cancelAll(const std::string& why);
    /// Whether no request is under way.
    bool idle() const { return live_ == 0 && preparing_ == 0; }

private:
    struct Entry;
    struct Prepared;
    using Shared = std::shared_ptr<Exchange>;

    void route(http::Request& request, const Shared& exchange, const http::Headers& headers);
    void generate(http::ApiKind kind, http::Request& request, const Shared& exchange, const http::Headers& headers);
    void tokens(bool ofText, http::Request& request, const Shared& exchange, const http::Headers& headers);
    void turnAway(const Prepared& prepared, const Shared& exchange, const http::ApiError& error);
    void begin(Prepared& prepared, const Shared& exchange);
    void lifecycle(const std::string& name, bool cancels, const Shared& exchange, const http::Headers& headers);
    void answer(const Shared& exchange, int status, std::string_view type, std::string_view body,
                const http::Headers& headers);
    void refuse(const Shared& exchange, const http::ApiError& error, http::Headers headers);
    void token(Entry& entry, const EngineEvent& event, const EngineEvent* end);
    void ended(Entry& entry, const EngineEvent& event);
    void streamPart(Entry& entry, std::string_view text, std::string_view finish);
    void finish(Entry& entry, const std::string& reason);
    void fail(Entry& entry, const http::ApiError& error);
    void cancel(Entry& entry, const char* by);
    void beginStream(Entry& entry);
    Entry* find(const std::string& name);
    /// Whether the server gave this name to a request.
    bool isOurs(const std::string& name);
    std::string refusalName();
    std::string modelName() const;
    std::vector<std::string> modelNames() const;
    void expectModel(const std::string& name) const;
    std::string modelJson(const std::string& name) const;
    std::string modelsJson() const;

    const ServiceOptions options_;
    const Around around_;
    Metrics metrics_;
    std::shared_ptr<const Model> model_; // null while it is loaded
    const std::int64_t started_;         // seconds since 1970
    bool stopping_ = false;
    int preparing_ = 0, waiting_ = 0, live_ = 0;
    serve::RequestId last_ = 0;
    std::int64_t refusals_ = 0;
    // requests that live, and the last that have ended
    std::unordered_map<serve::RequestId, std::unique_ptr<Entry>> entries_;
    std::deque<serve::RequestId> past_;
    std::map<std::string, serve::RequestId> names_; // the names of requests, ours and those that clients gave
};

} // namespace kvscope::server
