// A client's connection: takes requests in and sends answers out, in the same order. The thread that runs the context
// makes all calls.
#pragma once

#include "app/server/exchange.h"
#include "app/server/server.h"
#include "core/http/http_reader.h"

#include <array>
#include <asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

namespace kvscope::server {

class Connection final : public std::enable_shared_from_this<Connection> {
public:
    struct Owner {
        std::function<void(http::Request, const std::shared_ptr<Exchange>&)> handle;
        std::function<void(Exchange&)> gone;
        // Called with the status of an answer that the connection itself gives; returns the answer's x-request-id.
        std::function<std::string(int)> answered;
    };
    Connection(asio::ip::tcp::socket socket, const Limits& limits, const Owner& owner);

    void start();
    /// Answers that there are too many connections, and closes this one.
    void turnAway();
    /// Closes the connection where a limit of time has passed. ns: of the steady clock.
    void tick(std::int64_t ns);
    /// Closes the connection at once and cancels the request under way.
    void abort();
    bool open() const { return phase_ != Phase::Closed; }
    /// Whether no request is under way and nothing is left to write.
    bool quiet() const { return !exchange_ && !writes_; }

private:
    class Pending;
    enum class Phase : std::uint8_t { Open, Lingering, Closed };

    void read();
    void bytesCame(std::size_t count);
    void next();
    void refuse(int status, const std::string& message);
    void write(std::string_view bytes);
    void flush();
    void answerEnded(bool keep);
    void wrote();
    void linger();

    asio::ip::tcp::socket socket_;
    const Limits limits_;
    const Owner& owner_; // outlives all connections
    http::Reader reader_;
    Phase phase_ = Phase::Open;
    std::shared_ptr<Pending> exchange_; // the request under way and its answer; null: none
    // Of the present request
    bool keepAlive_ = true;                                    // the connection stays open after the answer
    bool chunked_ = true;                                      // a streamed answer goes out in chunks
    bool headOnly_ = false;                                    // it is a HEAD, whose answer has no body
    bool continued_ = false;                                   // the client was told that it may send the body
    bool begun_ = false;                                       // some byte of it has come
    http::Reader::State waitsFor_ = http::Reader::State::Head; // the part of it that is read now
    // Of the connection
    bool reads_ = false, writes_ = false; // the system was asked to read, to write
    bool closing_ = false;                // no answer follows those that are written
    bool behind_ = false;                 // the client reads too slowly: tick() or flush() closes the connection
    std::string out_;                     // text that was not yet given to the system
    std::size_t sent_ = 0;                // of out_
    std::int64_t readSinceNs_ = 0, wroteNs_ = 0, lingersNs_ = 0; // since when waitsFor_ is read; the last write; since
                                                                 // when the phase is Lingering
    std::array<char, 16384> bytes_{};
};

} // namespace kvscope::server
