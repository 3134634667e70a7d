#include "core/http/http_reader.h"

#include "base/json_reading.h"

#include <algorithm>
#include <fmt/format.h>

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
    bodyBytes_ = searched_ = 0;
    begun_ = false;
    state_ = State::Head;
    advance();
    return request;
}

void Reader::advance() {
    if (state_ == State::Head) {
        // Old clients send an empty line behind a body. One such line in front of a request is passed over.
        if (buffer_.size() < 2) return;
        if (!begun_ && buffer_.compare(0, 2, "\r\n") == 0) buffer_.erase(0, 2);
        begun_ = true;
        constexpr std::string_view kEnd = "\r\n\r\n";
        const std::size_t from = searched_ < kEnd.size() ? 0 : searched_ - (kEnd.size() - 1);
        const std::size_t end = buffer_.find(kEnd, from);
        const bool whole = end != std::string::npos;
        if ((whole ? end + kEnd.size() : buffer_.size()) > limits_.head) {
            fail(431, fmt::format("the request line and the headers are longer than {} bytes", limits_.head));
            return;
        }
        if (!whole) {
            searched_ = buffer_.size();
            return;
        }
        const std::string head = buffer_.substr(0, end + 2);
        buffer_.erase(0, end + kEnd.size());
        readHead(head);
        if (state_ == State::Failed) return;
    }
    if (buffer_.size() < bodyBytes_) {
        state_ = State::Body;
        return;
    }
    request_.body = buffer_.substr(0, bodyBytes_);
    buffer_.erase(0, bodyBytes_);
    state_ = State::Complete;
}

/// head: lines that end with CR LF.
void Reader::readHead(std::string_view head) {
    for (bool first = true; !head.empty(); first = false) {
        const std::size_t end = head.find("\r\n");
        const std::string_view line = head.substr(0, end);
        head.remove_prefix(end + 2);
        if (!(first ? readRequestLine(line) : readHeader(line))) return;
    }
    readMeaning();
}

bool Reader::readRequestLine(std::string_view line) {
    const std::size_t one = line.find(' '), two = line.rfind(' ');
    if (one == std::string_view::npos || one == two)
        return fail(400, "the request line is not a method, a target and a version with one blank between them");
    const std::string_view method = line.substr(0, one), target = line.substr(one + 1, two - one - 1),
                           version = line.substr(two + 1);
    if (!isToken(method)) return fail(400, "the method is no word of HTTP");
    if (target.empty() || target.front() != '/' || !std::all_of(target.begin(), target.end(), isVisible) ||
        target.find('#') != std::string_view::npos)
        return fail(400, "the target of the request is not a path that begins with /");
    if (version != "HTTP/1.1" && version != "HTTP/1.0")
        return fail(version.substr(0, 5) == "HTTP/" ? 505 : 400, "the version is neither HTTP/1.1 nor HTTP/1.0");
    minor_ = version.back() - '0';
    request_.method = method;
    const std::size_t question = target.find('?');
    request_.path = target.substr(0, question);
    if (question != std::string_view::npos) request_.query = target.substr(question + 1);
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
    for (const auto& [name, value] : request_.headers) {
        if (name == "transfer-encoding")
            return fail(411, "Transfer-Encoding is not read: send the body with its Content-Length");
        if (name == "host") ++hosts;
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
    if (hosts > 1 || (hosts == 0 && minor_ == 1)) return fail(400, "a request has one Host header");
    if (lengths == 0 && (request_.method == "POST" || request_.method == "PUT"))
        return fail(411, "a body comes with its Content-Length");
    return true;
}

} // namespace kvscope::http
