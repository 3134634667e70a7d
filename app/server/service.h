// The endpoints: what a request asks of the engine, and how the engine's tokens become its answer. No sockets.
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
    std::vector<std::string> aliases; // names of the model besides its own
    ApiKeys keys;
    HostCheck hosts{{}};
    int maxWaiting = 1024;      // requests that have not begun; more are refused
    double deadlineSeconds = 0; // of a request, from its arrival; 0: none
    double commentSeconds = 5;  // a silent stream has a comment this often; 0: none
    bool benchmark = false;     // clients are told not to try again
    int chatTokens = 512;       // new tokens of a chat that does not say how many
};

/// All calls are of one thread, that of the connections.
class Service {
public:
    /// What the service asks of the program around it.
    struct Around {
        std::function<void(serve::Submission)> submit;
        std::function<void(serve::RequestId)> cancel;
        /// Runs the first in another thread and then the second in this one.
        std::function<void(std::function<void()>, std::function<void()>)> aside;
        std::function<std::size_t()> connections;
    };
    Service(ServiceOptions options, Around around);
    ~Service();

    void handle(http::Request request, const std::shared_ptr<Exchange>& exchange);
    /// The client has closed the connection, or reads too slowly.
    void gone(Exchange& exchange);
    /// A request was answered without getting here.
    void answered(int status) { metrics_.answered(status); }

    void ready(std::shared_ptr<const Model> model);
    void batch(const EngineBatch& batch);
    /// Deadlines and comments. ns: of the steady clock.
    void tick(std::int64_t ns);
    /// Nothing more is admitted.
    void stopAdmitting() { stopping_ = true; }
    /// Ends what runs; clients get a sentence.
    void cancelAll(const std::string& why);
    /// Whether no request is under way.
    bool idle() const { return live_ == 0 && preparing_ == 0; }

private:
    struct Entry;
    struct Prepared;
    using Shared = std::shared_ptr<Exchange>;

    void route(http::Request& request, const Shared& exchange, const http::Headers& headers);
    void generate(http::ApiKind kind, http::Request& request, const Shared& exchange, const http::Headers& headers);
    void begin(Prepared& prepared, const Shared& exchange);
    void lifecycle(const http::Request& request, const Shared& exchange, const http::Headers& headers);
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
    std::string modelName() const;
    std::string modelsJson() const;

    const ServiceOptions options_;
    const Around around_;
    Metrics metrics_;
    std::shared_ptr<const Model> model_; // null while it is loaded
    const std::int64_t started_;         // seconds since 1970
    bool stopping_ = false;
    int preparing_ = 0, waiting_ = 0, live_ = 0;
    serve::RequestId last_ = 0;
    std::unordered_map<serve::RequestId, std::unique_ptr<Entry>> entries_; // live ones, and the last that ended
    std::deque<serve::RequestId> past_;
    std::map<std::string, serve::RequestId> names_; // ours and the clients'
};

} // namespace kvscope::server
