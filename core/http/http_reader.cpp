#include "core/http/http_reader.h"

#include "base/json_reading.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace kvscope::http {
namespace {

bool isTokenCharacter(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool isToken(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), isTokenCharacter); }

bool isVisible(char c) { return c > 0x20 && c < 0x7F; }

/// A value of a header may have printable characters, blanks, tabs and bytes above ASCII.
bool isValueCharacter(char c) { return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F); }

std::string small(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    return out;
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

/// Whether a list separated by commas has the word, in small or large letters.
bool lists(std::string_view list, std::string_view word) {
    while (true) {
        const std::size_t comma = list.find(',');
        if (small(trimmed(list.substr(0, comma))) == word) return true;
        if (comma == std::string_view::npos) return false;
        list.remove_prefix(comma + 1);
    }
}

/// The host and the path of a target, which clients of a proxy write as a whole address; a path alone has no host.
std::pair<std::string_view, std::string_view> hostAndPathOf(std::string_view target) {
    constexpr std::string_view kScheme = "http://";
    if (small(target.substr(0, kScheme.size())) != kScheme) return {{}, target};
    target.remove_prefix(kScheme.size());
    const std::string_view host = target.substr(0, target.find_first_of("/?"));
    target.remove_prefix(host.size());
    const bool right = !host.empty() && host.find('@') == std::string_view::npos;
    return {host, !right ? std::string_view() : target.empty() ? "/" : target};
}

} // namespace

const std::string* Request::header(std::string_view name) const {
    for (const auto& [known, value] : headers)
        if (known == name) return &value;
    return nullptr;
}

bool Reader::fail(int status, std::string message) {
    state_ = State::Failed;
    fault_ = {status, std::move(message)};
    buffer_.clear();
    return false;
}

Reader::State Reader::read(std::string_view bytes) {
    if (state_ == State::Failed) return state_;
    buffer_ += bytes;
    if (state_ != State::Complete) advance();
    return state_;
}

Request Reader::take() {
    Request request = std::move(request_);
    request_ = {};
    named_.clear();
    bodyBytes_ = line_ = searched_ = 0;
    begun_ = false;
    state_ = State::Head;
    advance();
    return request;
}

void Reader::advance() {
    if (state_ == State::Head && !readHead()) return;
    if (buffer_.size() < bodyBytes_) {
        state_ = State::Body;
        return;
    }
    request_.body = buffer_.substr(0, bodyBytes_);
    buffer_.erase(0, bodyBytes_);
    state_ = State::Complete;
}

/// Reads the lines of the head that are complete. @return whether the head is, and is right
bool Reader::readHead() {
    // Old clients send an empty line behind a body. One such line in front of a request is passed over.
    if (!begun_ && buffer_ == "\r") return false;
    if (!begun_ && buffer_.starts_with("\r\n")) buffer_.erase(0, 2), begun_ = true;
    if (buffer_.empty()) return false;
    begun_ = true;
    if (line_ == 0 && !isTokenCharacter(buffer_.front())) {
        constexpr char kTlsHandshake = 0x16; // the type of the first record of a TLS connection
        return fail(400, buffer_.front() == kTlsHandshake
                             ? "the connection begins with TLS, and this port has none: use http:// and not https://"
                             : "the connection does not begin with a method of HTTP");
    }
    for (;;) {
        const std::size_t end = buffer_.find('\n', std::max(line_, searched_));
        if (std::min(end, buffer_.size() - 1) >= limits_.head)
            return fail(431, fmt::format("the request line and the headers are longer than {} bytes", limits_.head));
        if (end == std::string::npos) {
            searched_ = buffer_.size();
            return false;
        }
        if (end == line_ || buffer_[end - 1] != '\r')
            return fail(400, "a line ends with LF alone: lines of HTTP end with CR and LF");
        const std::string line = buffer_.substr(line_, end - 1 - line_);
        const bool first = line_ == 0;
        line_ = end + 1;
        if (line.empty() && !first) break;
        if (!(first ? readRequestLine(line) : readHeader(line))) return false;
    }
    buffer_.erase(0, line_);
    return readMeaning();
}

bool Reader::readRequestLine(std::string_view line) {
    const std::size_t one = line.find(' '), two = line.rfind(' ');
    if (one == std::string_view::npos || one == two)
        return fail(400, "the request line is not a method, a target and a version with one blank between them");
    const std::string_view method = line.substr(0, one), target = line.substr(one + 1, two - one - 1),
                           version = line.substr(two + 1);
    if (!isToken(method)) return fail(400, "the method is not a word of HTTP");
    if (version != "HTTP/1.1" && version != "HTTP/1.0")
        return fail(version.substr(0, 5) == "HTTP/" ? 505 : 400, "the version is neither HTTP/1.1 nor HTTP/1.0");
    const auto [host, path] = hostAndPathOf(target);
    if (path.empty() || path.front() != '/' || !std::all_of(target.begin(), target.end(), isVisible) ||
        target.find('#') != std::string_view::npos)
        return fail(400, "the target of the request is neither a path that begins with / nor an address of http://");
    minor_ = version.back() - '0';
    request_.method = method;
    named_ = host;
    const std::size_t question = path.find('?');
    request_.path = path.substr(0, question);
    if (question != std::string_view::npos) request_.query = path.substr(question + 1);
    return true;
}

bool Reader::readHeader(std::string_view line) {
    if (request_.headers.size() >= limits_.headers)
        return fail(431, fmt::format("there are more than {} headers", limits_.headers));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !isToken(line.substr(0, colon)))
        return fail(400, "a header line does not begin with a name and a colon");
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (!std::all_of(value.begin(), value.end(), isValueCharacter))
        return fail(400, fmt::format("the header {} has control characters", shown(line.substr(0, colon))));
    request_.headers.emplace_back(small(line.substr(0, colon)), std::string(value));
    return true;
}

/// Reads what the headers say about the message itself: its length, its encoding and its connection. A message with two
/// lengths is refused, because a proxy between client and server may have taken the other length.
bool Reader::readMeaning() {
    int hosts = 0, lengths = 0;
    request_.keepAlive = request_.chunked = minor_ == 1;
    for (auto& [name, value] : request_.headers) {
        if (name == "transfer-encoding")
            return fail(411, "Transfer-Encoding is not read: send the body with its Content-Length");
        if (name == "content-encoding" && small(value) != "identity")
            return fail(415, "Content-Encoding is not read: send the body as it is");
        if (name == "host") {
            ++hosts;
            if (!named_.empty()) value = named_; // the address counts, see RFC 9112, 3.2.2
        }
        if (name == "connection") {
            if (lists(value, "close"))
                request_.keepAlive = false;
            else if (lists(value, "keep-alive"))
                request_.keepAlive = true;
        }
        if (name == "expect") {
            if (small(value) != "100-continue") return fail(417, "Expect knows 100-continue only");
            request_.expects = minor_ == 1;
        }
        if (name != "content-length") continue;
        if (++lengths > 1) return fail(400, "there are two Content-Lengths");
        if (value.empty() || !std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; }))
            return fail(400, "Content-Length is not a number of bytes");
        for (const char c : value) {
            bodyBytes_ = bodyBytes_ * 10 + std::size_t(c - '0');
            if (bodyBytes_ > limits_.body)
                return fail(413, fmt::format("the body is longer than {} bytes", limits_.body));
        }
    }
    if (hosts == 0 && minor_ == 0 && !named_.empty()) request_.headers.emplace_back("host", named_);
    if (hosts > 1 || (hosts == 0 && minor_ == 1)) return fail(400, "a request has one Host header");
    if (lengths == 0 && (request_.method == "POST" || request_.method == "PUT"))
        return fail(411, "a body comes with its Content-Length");
    return true;
}

} // namespace kvscope::http
