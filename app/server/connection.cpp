#include "app/server/connection.h"

#include "base/clock.h"

#include <algorithm>
#include <asio/buffer.hpp>
#include <asio/post.hpp>
#include <fmt/format.h>

namespace kvscope::server {

using State = http::Reader::State;

namespace {

constexpr double kLinger = 2; // seconds for which a closed side lets the client read what was written

http::Limits readerLimits(const Limits& limits) {
    return {std::size_t(limits.headBytes), std::size_t(limits.bodyBytes), 100};
}

} // namespace

/// The request under way. When the connection lets it go, others may still have it; calls do nothing then.
class Connection::Pending final : public Exchange {
public:
    explicit Pending(Connection* connection) : connection_(connection) {}
    void part() { connection_ = nullptr; }

    void respond(int status, std::string_view type, std::string_view body, const http::Headers& headers) override {
        if (!connection_) return;
        std::string answer = http::response(status, type, body, connection_->keepAlive_, headers);
        if (connection_->headOnly_) answer.resize(answer.size() - body.size());
        connection_->write(answer);
        if (connection_) connection_->answerEnded(true);
    }
    void beginStream(const http::Headers& headers) override {
        if (!connection_) return;
        // only the connection's end marks the end of the answer
        if (!connection_->chunked_) connection_->keepAlive_ = false;
        connection_->write(http::streamHead(connection_->chunked_, connection_->keepAlive_, headers));
    }
    void stream(std::string_view bytes) override {
        if (!connection_) return;
        connection_->write(connection_->chunked_ ? http::chunk(bytes) : std::string(bytes));
        if (connection_ && double(connection_->out_.size() - connection_->sent_) > connection_->limits_.bufferBytes)
            connection_->behind_ = true; // ends the connection when the events of the engine have been handled
    }
    void endStream(bool keep) override {
        if (!connection_) return;
        if (connection_->chunked_) connection_->write(http::chunk({}));
        if (connection_) connection_->answerEnded(keep);
    }

private:
    Connection* connection_; // null as soon as the answer is complete or the connection has closed
};

Connection::Connection(asio::ip::tcp::socket socket, const Limits& limits, const Owner& owner)
    : socket_(std::move(socket)), limits_(limits), owner_(owner), reader_(readerLimits(limits)),
      readSinceNs_(steadyNowNs()) {}

void Connection::start() {
    asio::error_code ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    // Without a limit the system would keep several MB for a client that reads nothing.
    const int kept = int(std::min(limits_.bufferBytes, 262144.0));
    socket_.set_option(asio::socket_base::send_buffer_size(kept), ignored);
    read();
}

void Connection::turnAway() {
    refuse(503, "too many connections are open");
    read();
}

/// One read is always pending, so that a client that closes is noticed at once.
void Connection::read() {
    if (reads_ || phase_ == Phase::Closed) return;
    reads_ = true;
    socket_.async_read_some(asio::buffer(bytes_),
                            [self = shared_from_this()](asio::error_code error, std::size_t count) {
                                self->reads_ = false;
                                if (self->phase_ == Phase::Closed) return;
                                if (error) return self->abort();
                                self->bytesCame(count);
                                self->read();
                            });
}

void Connection::bytesCame(std::size_t count) {
    if (closing_ || phase_ == Phase::Lingering) return; // bytes behind the last request are not read
    reader_.read({bytes_.data(), count});
    if (exchange_) {
        if (double(reader_.waiting()) > limits_.bufferBytes + limits_.bodyBytes) abort();
        return;
    }
    next();
}

/// Reads on in the bytes that have come, while no request is under way.
void Connection::next() {
    const State state = reader_.state();
    if (state == State::Failed) return refuse(reader_.fault().status, reader_.fault().message);
    if (state != State::Complete) {
        if (state != waitsFor_ || reader_.begun() != begun_) readSinceNs_ = steadyNowNs();
        waitsFor_ = state, begun_ = reader_.begun();
        if (state == State::Body && reader_.request().expects && !continued_) {
            continued_ = true;
            write("HTTP/1.1 100 Continue\r\n\r\n");
        }
        return;
    }
    continued_ = begun_ = false;
    waitsFor_ = State::Head;
    http::Request request = reader_.take();
    keepAlive_ = request.keepAlive;
    chunked_ = request.chunked;
    headOnly_ = request.method == "HEAD";
    exchange_ = std::make_shared<Pending>(this);
    owner_.handle(std::move(request), std::shared_ptr<Exchange>(exchange_));
}

/// Writes an answer of the connection itself, after which the connection closes.
void Connection::refuse(int status, const std::string& message) {
    write(http::response(status, "application/json", http::errorJson(http::ApiError(status, message)), false,
                         {{"x-request-id", owner_.answered(status)}}));
    keepAlive_ = false;
    closing_ = true;
    if (!writes_) linger();
}

void Connection::answerEnded(bool keep) {
    if (exchange_) exchange_->part();
    exchange_.reset();
    readSinceNs_ = steadyNowNs();
    if (!keep || !keepAlive_) {
        closing_ = true;
        if (!writes_ && phase_ == Phase::Open) linger();
        return;
    }
    // Posted, so that the caller finishes first: a request that has come meanwhile may be answered at once.
    if (reader_.begun())
        asio::post(socket_.get_executor(), [self = shared_from_this()] {
            if (self->phase_ == Phase::Open && !self->closing_ && !self->exchange_) self->next();
        });
}

void Connection::write(std::string_view bytes) {
    if (phase_ != Phase::Open || closing_) return;
    if (!writes_) wroteNs_ = steadyNowNs();
    out_ += bytes;
    if (writes_) return;
    writes_ = true;
    // Posted, so that the caller finishes first and all that it writes goes out together.
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->flush(); });
}

void Connection::flush() {
    if (phase_ == Phase::Closed) return;
    if (behind_) return abort();
    socket_.async_write_some(asio::buffer(out_.data() + sent_, out_.size() - sent_),
                             [self = shared_from_this()](asio::error_code error, std::size_t count) {
                                 if (self->phase_ == Phase::Closed) return;
                                 if (error) return self->abort();
                                 self->sent_ += count;
                                 self->wroteNs_ = steadyNowNs();
                                 self->wrote();
                             });
}

void Connection::wrote() {
    if (sent_ < out_.size()) {
        if (sent_ > out_.size() / 2) out_.erase(0, sent_), sent_ = 0;
        return flush();
    }
    out_.clear();
    sent_ = 0;
    writes_ = false;
    if (closing_) linger();
}

/// Ends the writing side. Closing at once could discard what the client has not read yet.
void Connection::linger() {
    if (phase_ != Phase::Open) return;
    phase_ = Phase::Lingering;
    lingersNs_ = steadyNowNs();
    asio::error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void Connection::abort() {
    if (phase_ == Phase::Closed) return;
    phase_ = Phase::Closed;
    asio::error_code ignored;
    socket_.close(ignored);
    if (!exchange_) return;
    const std::shared_ptr<Pending> left = std::move(exchange_);
    left->part();
    owner_.gone(*left);
}

void Connection::tick(std::int64_t ns) {
    const auto over = [&](std::int64_t since, double limit) { return double(ns - since) / 1e9 > limit; };
    if (phase_ == Phase::Closed) return;
    if (phase_ == Phase::Lingering) {
        if (over(lingersNs_, kLinger)) abort();
        return;
    }
    if (behind_ || (writes_ && over(wroteNs_, limits_.writeSeconds))) return abort();
    if (exchange_ || closing_ || writes_) return;
    if (!begun_) {
        if (over(readSinceNs_, limits_.idleSeconds)) linger();
    } else if (waitsFor_ == State::Head && over(readSinceNs_, limits_.headSeconds)) {
        refuse(408, fmt::format("the headers took longer than {} s", limits_.headSeconds));
    } else if (waitsFor_ == State::Body && over(readSinceNs_, limits_.bodySeconds)) {
        refuse(408, fmt::format("the body took longer than {} s", limits_.bodySeconds));
    }
}

} // namespace kvscope::server
