// A client that uses a socket itself: it sends whole requests, halves of requests, and none. For tests and benchmarks
// of the server.
#pragma once

#include <arpa/inet.h>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace kvscope::test {

class HttpClient {
public:
    /// receiveBuffer: bytes of the system's buffer; 0: its own choice.
    explicit HttpClient(int port, int receiveBuffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
        if (receiveBuffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receiveBuffer, sizeof receiveBuffer);
        sockaddr_in place{};
        place.sin_family = AF_INET;
        place.sin_port = htons(static_cast<std::uint16_t>(port));
        place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&place), sizeof place) == 0;
    }
    ~HttpClient() { close(); }
    HttpClient(HttpClient&& other) noexcept
        : socket_(other.socket_), connected_(other.connected_), ended_(other.ended_), text_(std::move(other.text_)) {
        other.socket_ = -1;
    }
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;
    HttpClient& operator=(HttpClient&&) = delete;

    bool connected() const { return connected_; }
    void send(const std::string& bytes) const { (void)!::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
    void close() {
        if (socket_ >= 0) ::close(socket_);
        socket_ = -1;
    }
    /// Reads until the text has come. @return whether it has, within 30 s and before the end
    bool readUntil(const std::string& text) {
        while (text_.find(text) == std::string::npos)
            if (!receive()) return false;
        return true;
    }
    /// Everything up to the end of the connection.
    const std::string& readAll() {
        while (receive()) {
        }
        return text_;
    }
    /// The socket, for a caller that waits for several; -1: closed.
    int handle() const { return socket_; }
    /// Waits for bytes and appends what has come to the text. @return false at the end of the connection, and where no
    /// byte came within 30 s
    bool receive() {
        pollfd fd{socket_, POLLIN, 0};
        if (ended_ || socket_ < 0 || poll(&fd, 1, 30'000) <= 0) return false;
        std::array<char, 16384> buffer{};
        const auto count = ::recv(socket_, buffer.data(), buffer.size(), 0);
        if (count <= 0) {
            ended_ = true;
            return false;
        }
        text_.append(buffer.data(), std::size_t(count));
        return true;
    }
    /// Whether the server has ended the connection. False also after a call that gave up waiting after 30 s.
    bool ended() const { return ended_; }
    const std::string& text() const { return text_; }
    void forget() { text_.clear(); }

private:
    int socket_;
    bool connected_ = false, ended_ = false;
    std::string text_;
};

/// The text of a request. close: asks the server to end the connection after its answer.
inline std::string httpRequest(const std::string& method, const std::string& path, const std::string& body = {},
                               const std::string& headers = {}, bool close = true) {
    return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + (close ? "Connection: close\r\n" : "") + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

struct HttpAnswer {
    int status = 0;
    std::string head, body;
};
inline HttpAnswer httpAnswer(const std::string& text) {
    HttpAnswer answer;
    const std::size_t end = text.find("\r\n\r\n");
    if (text.rfind("HTTP/1.1 ", 0) != 0 || end == std::string::npos) return answer;
    answer.status = std::atoi(text.c_str() + 9);
    answer.head = text.substr(0, end + 2);
    answer.body = text.substr(end + 4);
    if (answer.head.find("chunked") == std::string::npos) return answer;
    std::string whole;
    for (std::size_t at = 0; at < answer.body.size();) {
        const std::size_t size = std::strtoul(answer.body.c_str() + at, nullptr, 16);
        const std::size_t from = answer.body.find("\r\n", at) + 2;
        whole += answer.body.substr(from, size);
        at = from + size + 2;
    }
    answer.body = whole;
    return answer;
}
inline HttpAnswer askHttp(int port, const std::string& method, const std::string& path, const std::string& body = {},
                          const std::string& headers = {}) {
    HttpClient client(port);
    client.send(httpRequest(method, path, body, headers));
    return httpAnswer(client.readAll());
}

} // namespace kvscope::test
