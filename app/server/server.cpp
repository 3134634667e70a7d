#include "app/server/server.h"

#include "app/server/connection.h"
#include "app/terminal/output.h"

#include "base/clock.h"
#include "base/error.h"

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <asio/thread_pool.hpp>
#include <csignal>
#include <fmt/format.h>
#include <list>
#include <sys/resource.h>

namespace kvscope::server {
namespace {

using asio::ip::tcp;

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr double kFarewell = 1; // seconds in which the last answers must be written

/// A process may have 1,024 open files unless it asks for more, and each connection is one.
void raiseOpenFiles() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

class Server {
public:
    Server(const ServerOptions& options, const LoadEngine& load);
    int run();

private:
    void listen();
    void accept();
    void tick();
    void watchSignals();
    void stop(const std::string& why);
    std::string place() const;

    const ServerOptions options_;
    asio::io_context context_{1};
    asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
    tcp::acceptor acceptor_{context_};
    asio::steady_timer timer_{context_};
    asio::signal_set signals_{context_, SIGINT, SIGTERM, SIGHUP};
    asio::thread_pool aside_{1};
    Service service_;
    const Connection::Owner owner_;
    std::list<std::shared_ptr<Connection>> connections_;
    bool acceptPending_ = false, stopping_ = false, cancelled_ = false;
    std::int64_t stoppedNs_ = 0, cancelledNs_ = 0;
    std::exception_ptr failure_;
    std::unique_ptr<EngineThread> engine_;
};

Server::Server(const ServerOptions& options, const LoadEngine& load)
    : options_(options),
      service_(options.service, {[this](serve::Submission submission, std::string kind) {
                                     engine_->submit(std::move(submission), std::move(kind));
                                 },
                                 [this](serve::RequestId id, std::string by) { engine_->cancel(id, std::move(by)); },
                                 [this](std::int64_t arrivalNs, std::string kind, std::string why) {
                                     engine_->turnedAway(arrivalNs, std::move(kind), std::move(why));
                                 },
                                 [this](std::function<void()> first, std::function<void()> second) {
                                     asio::post(aside_, [this, first = std::move(first), second = std::move(second)] {
                                         first();
                                         asio::post(context_, second);
                                     });
                                 },
                                 [this] { return connections_.size(); }}),
      owner_{[this](http::Request request, const std::shared_ptr<Exchange>& exchange) {
                 service_.handle(std::move(request), exchange);
             },
             [this](Exchange& exchange) { service_.gone(exchange); },
             [this](int status) { return service_.answered(status); }} {
    raiseOpenFiles();
    listen();
    watchSignals();
    printOut("listening on {}\n", place());
    (void)outputFailure(); // a program that started this one waits for the line
    engine_ = std::make_unique<EngineThread>(
        load, EngineThread::Listener{[this](std::shared_ptr<const Model> model, const std::string& backend) {
                                         asio::post(context_, [this, model = std::move(model), backend] {
                                             service_.ready(model);
                                             printOut("ready: {} on {}\n", model->name(), backend);
                                             (void)outputFailure();
                                         });
                                     },
                                     [this](EngineBatch batch) {
                                         asio::post(context_,
                                                    [this, batch = std::move(batch)] { service_.batch(batch); });
                                     },
                                     [this](std::exception_ptr failure) {
                                         asio::post(context_, [this, failure = std::move(failure)] {
                                             failure_ = failure;
                                             stop("the engine has failed");
                                         });
                                     }});
}

std::string Server::place() const {
    const tcp::endpoint end = acceptor_.local_endpoint();
    const std::string address = end.address().to_string();
    return fmt::format("http://{}:{}", end.address().is_v6() ? "[" + address + "]" : address, end.port());
}

void Server::listen() {
    asio::error_code error;
    const std::string written = options_.address == "localhost" ? "127.0.0.1" : options_.address;
    const asio::ip::address address = asio::ip::make_address(written, error);
    if (error)
        throw Error(ErrorKind::BadInput, fmt::format("'{}' is not an address", options_.address),
                    "give --host a number such as 127.0.0.1 or ::1");
    const tcp::endpoint end(address, static_cast<unsigned short>(options_.port));
    acceptor_.open(end.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(end, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error)
        throw Error(ErrorKind::BadInput,
                    fmt::format("cannot listen on {} port {}: {}", options_.address, options_.port, error.message()),
                    "choose another --port, or 0 for a free one");
}

void Server::accept() {
    if (acceptPending_) return;
    acceptPending_ = true;
    acceptor_.async_accept([this](asio::error_code error, tcp::socket socket) {
        acceptPending_ = false;
        if (error) return; // no file is free, or the client has left; the next tick accepts again
        const auto connection = std::make_shared<Connection>(std::move(socket), options_.limits, owner_);
        const bool full = double(connections_.size()) >= options_.limits.connections;
        connections_.push_back(connection);
        if (full)
            connection->turnAway();
        else
            connection->start();
        accept();
    });
}

void Server::watchSignals() {
    signals_.async_wait([this](asio::error_code error, int) {
        if (error) return;
        if (stopping_ && !cancelled_) {
            cancelled_ = true, cancelledNs_ = steadyNowNs();
            service_.cancelAll("the server is stopping");
        }
        if (!stopping_) {
            stopping_ = true, stoppedNs_ = steadyNowNs();
            service_.stopAdmitting();
            printErr("kvscope-cli: stopping; requests that run have {} s\n", options_.limits.drainSeconds);
        }
        watchSignals();
    });
}

void Server::stop(const std::string& why) {
    stopping_ = cancelled_ = true;
    stoppedNs_ = cancelledNs_ = steadyNowNs();
    service_.stopAdmitting();
    service_.cancelAll(why);
}

void Server::tick() {
    timer_.expires_after(kTick);
    timer_.async_wait([this](asio::error_code error) {
        if (error) return;
        const std::int64_t ns = steadyNowNs();
        service_.tick(ns);
        for (auto i = connections_.begin(); i != connections_.end();) {
            (*i)->tick(ns);
            i = (*i)->open() ? std::next(i) : connections_.erase(i);
        }
        accept();
        if (stopping_) {
            if (!cancelled_ && double(ns - stoppedNs_) / 1e9 > options_.limits.drainSeconds) {
                cancelled_ = true, cancelledNs_ = ns;
                service_.cancelAll("the server is stopping");
            }
            const bool written = std::all_of(connections_.begin(), connections_.end(),
                                             [](const auto& connection) { return connection->quiet(); });
            const bool late = cancelled_ && double(ns - cancelledNs_) / 1e9 > kFarewell;
            if ((service_.idle() && written) || late) {
                context_.stop();
                return;
            }
        }
        tick();
    });
}

int Server::run() {
    accept();
    tick();
    context_.run();
    aside_.join();
    engine_.reset();
    if (failure_) {
        try {
            std::rethrow_exception(failure_);
        } catch (const Error& error) {
            if (error.kind != ErrorKind::Cancelled) throw;
        }
    }
    return 0;
}

} // namespace

std::string whyNoServer() { return {}; }

int serve(const ServerOptions& options, const LoadEngine& load) { return Server(options, load).run(); }

} // namespace kvscope::server
