// Reads HTTP/1.1 requests from the bytes of a connection, as strictly as RFC 9112 lets a server be.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope::http {

struct Limits {
    std::size_t head = 16 << 10; // request line and headers together, bytes
    std::size_t body = 8 << 20;
    std::size_t headers = 100; // lines
};

struct Request {
    std::string method, path, query;                          // path without the question mark and what follows it
    std::vector<std::pair<std::string, std::string>> headers; // names in small letters, values without outer blanks
    std::string body;
    bool keepAlive = true; // the client wants another request on the connection
    bool chunked = true;   // the answer may be chunked, because the client speaks HTTP/1.1
    bool expects = false;  // it sends the body after "100 Continue"

    /// The value of the first header of this name (small letters); null: there is none.
    const std::string* header(std::string_view name) const;
};

/// Why the bytes of a connection are not a request that is served. status 0: nothing is wrong.
struct Fault {
    int status = 0;
    std::string message; // one sentence without a full stop
};

/// Takes the bytes of a connection in pieces of any size; how they are cut does not change the requests. A fault is
/// reported with the first byte that makes the request wrong, so that a client with another protocol, such as TLS, is
/// answered before the end of the headers. After a fault the connection must close, because nobody knows where the next
/// request would begin.
class Reader {
public:
    enum class State { Head, Body, Complete, Failed };

    explicit Reader(const Limits& limits = {}) : limits_(limits) {}

    /// Appends bytes and reads on. @return the state
    State read(std::string_view bytes);
    State state() const { return state_; }
    const Fault& fault() const { return fault_; }
    /// In the states Body and Complete: what is known of the request. Its body is there in Complete.
    const Request& request() const { return request_; }
    /// Whether bytes of a request have come.
    bool begun() const { return state_ != State::Head || !buffer_.empty(); }
    /// How many bytes belong to later requests, or to a part that is not complete.
    std::size_t waiting() const { return buffer_.size(); }
    /// In the state Complete: returns the request, and goes on with the bytes that came behind it.
    Request take();

private:
    void advance();
    bool readHead();
    bool readRequestLine(std::string_view line);
    bool readHeader(std::string_view line);
    bool readMeaning();
    bool fail(int status, std::string message);

    Limits limits_;
    State state_ = State::Head;
    bool begun_ = false; // the first byte of the present request was looked at
    std::string buffer_;
    std::size_t line_ = 0;     // where the first line of the head begins that was not read yet
    std::size_t searched_ = 0; // so many bytes of the buffer hold no end of that line
    std::size_t bodyBytes_ = 0;
    int minor_ = 1;     // of HTTP/1.x
    std::string named_; // the host of a target that is a whole address; empty: the target is a path
    Request request_;
    Fault fault_;
};

} // namespace kvscope::http
